// Package natslog keeps a document the same among replicas that share a log on NATS JetStream, with no
// hub and no channels between them (requirement 9).
//
//	js, err := jetstream.New(nc)
//	d, err := natslog.Open(ctx, js, natslog.Options{Agent: "mars", Document: "plan"})
//	err = d.Edit(ctx, func(doc *crdt.Doc) error { return doc.Map("todo").Set("k", 1) })
//	err = d.Flush(ctx) // it is in the log
//
// A [Document] is a [replica.Replica] besides: it can be linked by channels with agents that do not reach the server.
//
// # What is promised
//
// Edits made while the server is away are sent once it is back; what was sent and not acknowledged is sent again
// and counts once. What [Document.Flush] has waited for is in the log, and every replica gets it, whoever dies
// meanwhile. It is as durable as what the server acknowledges: by default a stock server syncs its files every two
// minutes, so that a power cut may take what is younger. What replicas that live still have, they then put back.
//
// Who opens the document starts from the newest snapshot and the log behind it. A snapshot is loaded again and
// compared, in content and order, before the log is purged, and the log is purged only up to the snapshot before.
// Any replica takes one when the log behind the newest has grown; the head, which is changed only by who knows it,
// decides between two.
//
// An entry that cannot be read is logged with its source and skipped (Req 9.5). Replicas ask each other for what
// they find missing then, and who has it stores a snapshot with it; now and then those that have read as much compare
// what they have. A server that has lost the end of the log, its snapshots or all, from a backup say, gets back
// what the replicas have that live.
//
// # Epochs
//
// A document that churns is succeeded by one without the history ([Document.Compact], or by itself with
// Options.Keeper, which one at least should have: a document takes 4096 sessions, each a run of Open, in an epoch). The
// log says where an epoch ends. What was in the log before is in the next epoch; what was not, its writer carries
// over itself, once. A replica that was away for over an hour meanwhile, or for more than 16 epochs, goes on without
// what it had not sent: the application gets that ([replica.Update], Left), and Flush fails with [CodeLost].
//
// # Trust
//
// Whoever the server lets write to the stream can write in everybody's name: rights on the server are the boundary,
// and Options.Access is for those who keep to it. Updates are checked before they are applied, as those that come by
// channels are.
package natslog
