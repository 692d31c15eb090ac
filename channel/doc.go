// Package channel links two agents: a [Channel] delivers envelopes both ways, in
// order and each once, over any transport. A [Manager] opens, accepts and closes
// channels:
//
//	m := channel.NewManager(channel.Options{Dialers: dialers}, nil)
//	c, err := m.OpenAt(ctx, "mars", "venus", endpoint)
//	c.OnMessage(func(ctx context.Context, e *envelope.Envelope) { fmt.Println(e.Sender) })
//	err = c.Send(ctx, e)
//
// # Delivery
//
// Envelopes are numbered. The receiver passes them to the handlers one after the other
// and acknowledges those that were handled; the sender keeps the unacknowledged ones.
// When the connection breaks, the channel is [Reconnecting]: the end that opened it
// connects again, both ends exchange what they have received, and the rest is sent
// again. So a broken connection loses, repeats or reorders nothing.
//
// The memory of a process ends with it. An end that restarts keeps these guarantees if
// its state is stored: [Options.Checkpoints] at the end that receives, [Channel.State]
// and [Manager.Resume] at the end that opened the channel. Without checkpoints a
// receiver that crashes may receive again what it handled but did not acknowledge.
//
// An envelope that the receiver cannot read (too large, or of another schema version)
// is rejected: its sender gets a delivery failure, and the next ones are delivered.
//
// # Peers
//
// Options.Authorize decides which peer may speak for an agent. If two processes are the
// same peer to the transport, because they share a token, the first that speaks for an
// agent keeps it while it is connected, and the second is refused. Once the first's
// connections are broken, the second replaces it.
//
// # Bounds
//
// At most Options.Window envelopes and Options.WindowBytes bytes, or less if the
// receiver says so, may be sent and not yet handled; then Send blocks. So a slow
// handler delays its own sender only. A receiver drops the connection of a sender that
// exceeds the window.
package channel
