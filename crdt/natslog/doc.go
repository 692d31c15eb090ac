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
// they find missing then, and who has it stores a snapshot with it.
//
// # Epochs
//
// A document that churns is succeeded by one without the history ([Document.Compact], or by itself with
// Options.Keeper). The log says where an epoch ends. What was in the log before is in the next epoch; what was not,
// its writer carries over itself, once. A replica that was away for so long that the log of its epoch is gone goes on
// without what it had not sent, and the application gets that ([replica.Update], Left).
//
// # Trust
//
// Whoever the server lets write to the stream can write in everybody's name: rights on the server are the boundary,
// and Options.Access is for those who keep to it. Updates are checked before they are applied, as those that come by
// channels are.
package natslog
