// Package bus is Parley's NATS: embedded in the hub's process, or an external
// server or cluster by URL. It owns durability, connection errors, and the
// order of a graceful shutdown.
//
// There are three ways to a [Bus]:
//
//   - [Open] without a URL starts a server in this process, on a store below
//     the data directory, which a file lock keeps to one process. The hub does
//     this. It listens on a free loopback port for the user's other processes,
//     and lets in who has a [Grant].
//   - [Join] is how those other processes connect. A joined Bus survives the
//     hub's restart: it asks the new one for a Grant.
//   - [Open] with a URL connects to a server or cluster somewhere else.
//
// # Isolation
//
// A [Grant] for a project lets a process into the NATS account of that
// project's namespace. NATS passes nothing from one account to another, so a
// project's processes can neither see nor change what is another's or the
// hub's, whatever they send. No credential lies on the disk.
//
// # Durability
//
// JetStream acknowledges when a message is in the kernel's page cache: killing
// a process loses nothing, a power cut up to two minutes, and streams made
// shortly before altogether. So the embedded bus does not trust that
// acknowledgement: [Bus.Publish], [Batch.Wait] and [Bus.EnsureStream] return
// after the data is on disk. In the mode [DurabilityCommit] all publishes that
// wait at the same time share one syncfs (group commit), which is several times
// faster than the server's own sync after every write ([DurabilityAlways]).
// Where there is no syncfs, commit becomes always, and [Info] and the log say
// so. What is published past the Bus, through [Bus.JetStream] or a key-value
// bucket, is durable after the next [Bus.Commit].
//
// On two cores and an SSD a publish takes about 0.2 ms and 16 at once share
// their syncs to about 20 000 a second. The sync is the filesystem's: while another
// program writes hundreds of megabytes a second there, one publish in a hundred
// takes tens of milliseconds. A sync after every write fares worse.
//
// An external server's durability is its own: Commit does nothing there.
//
// Positions of consumers are not covered: JetStream writes them behind, and
// after a power cut a consumer may see messages again that it had acknowledged.
package bus
