// Package natslog synchronizes a document among replicas that share a log on NATS JetStream, without a hub
// or channels.
//
//	js, err := jetstream.New(nc)
//	d, err := natslog.Open(ctx, js, natslog.Options{Agent: "mars", Document: "plan"})
//	err = d.Edit(ctx, func(doc *crdt.Doc) error { return doc.Map("todo").Set("k", 1) })
//	err = d.Flush(ctx) // it is in the log
//
// A [Document] is also a [replica.Replica]: it can be linked over channels with agents that do not reach the server.
//
// # Guarantees
//
// Edits made while the server is unreachable are sent later. What was sent without an acknowledgement is sent again
// and stored once. After [Document.Flush] the edits are in the log, and every replica receives them, even if their
// writer dies. They are as durable as the server's acknowledgements: by default a server syncs its files every two
// minutes, so a power failure may lose the latest. Running replicas then restore what they have.
//
// Opening a document reads the newest snapshot and the log after it. A snapshot is loaded again and
// compared, in content and order, before the log is purged, and the log is purged only up to the previous
// snapshot. Any replica stores one when the log after the newest has grown. The head is changed by
// compare-and-set, which decides between concurrent snapshots.
//
// An entry that cannot be decoded is logged with its source and skipped. Replicas ask each other for
// updates that are missing, and one that has them stores a snapshot with them. Periodically, replicas that
// have read equally far compare their clocks. A server that has lost the end of the log, its snapshots or
// everything, e.g. because it was restored from a backup, receives the content of the running replicas.
//
// # Epochs
//
// A document with too much history is succeeded by one without it, by [Document.Compact] or automatically
// by a replica with Options.Keeper. At least one replica should have it: an epoch is limited to 4096
// sessions, one for each Open. The log contains the end of each epoch. What was in the log before is in the
// next epoch; other edits are carried over by their writer, once. A replica that was offline for over an
// hour or for more than 16 epochs meanwhile continues without its unsent edits: the application receives
// them ([replica.Update], Left), and Flush fails with [CodeLost].
//
// # Trust
//
// A user who may write to the stream can write in anyone's name: permissions on the server are the security
// boundary, and Options.Access restrains only replicas that comply. Updates are checked before they are
// applied, like those of channels.
package natslog
