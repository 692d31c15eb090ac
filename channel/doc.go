// Package channel links two agents: a [Channel] carries envelopes both ways, in
// order and each once, over any transport.
//
// A [Manager] opens channels, takes those that others open, and closes them.
//
//	m := channel.NewManager(channel.Options{Dialers: …})
//	ch, err := m.OpenAt(ctx, "mars", "venus", endpoint)
//	ch.OnMessage(func(ctx context.Context, e *envelope.Envelope) { … })
//	err = ch.Send(ctx, e)
//
// # Promises
//
// Envelopes are numbered. The receiver hands them to the handlers one after the
// other and acknowledges those that were handled; the sender keeps what is not
// acknowledged. When the connection breaks, the channel is [Reconnecting]: the
// end that opened it connects again, both say how far they have got, and the
// rest is sent again. So across breaks of the connection nothing is lost,
// repeated or reordered.
//
// What a process has in memory goes with it. An end that restarts keeps the
// promise if it saves its side: [Options.Checkpoints] for the end that receives,
// [Channel.State] and [Manager.Resume] for the end that opened the channel.
// Without checkpoints a receiver that crashes may get again what it had handled
// but not yet acknowledged.
//
// An envelope that the receiver cannot read, because it is too large for it or of
// another schema version, is sent back: its sender is told as of any other
// delivery that failed, and those behind it go on.
//
// # Who speaks for an agent
//
// Options.Authorize decides which peer may. Of two processes that are the same
// peer to the transport, because they hold the same token, say, the first that
// speaks for an agent does so as long as it is connected, and the other is
// refused; when its connections are broken, the other takes its place, as a
// process that was started anew does.
//
// # Bounds
//
// A sender holds at most Options.Window envelopes and Options.WindowBytes bytes
// that the receiver has not handled, or what the receiver allows if that is less;
// then Send blocks. A slow handler thus slows its sender down and nobody else. A
// receiver drops the connection of a sender that sends more.
package channel
