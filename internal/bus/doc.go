// Package bus is Parley's NATS: embedded in the hub's process, or an external server or cluster.
// It is responsible for durability, connection errors, and a graceful shutdown.
//
// A [Bus] is opened in one of three ways:
//
//   - [Open] without a URL starts a server in this process, with a store below the data
//     directory, which a file lock restricts to one process. The hub does this. The server
//     listens on a free loopback port for other processes of the user; each needs a [Grant].
//   - [Join] connects those other processes. A joined Bus survives a restart of the hub: it
//     requests a Grant from the new one.
//   - [Open] with a URL connects to another server or cluster.
//
// # Isolation
//
// A [Grant] for a project admits a process to the NATS account of the project's namespace. NATS
// isolates accounts, so a project's processes can neither read nor change data of another project
// or of the hub. No credential is written to disk.
//
// # Durability
//
// JetStream acknowledges a message when it is in the kernel's page cache. A killed process then
// loses nothing, but a power cut loses up to two minutes, and new streams entirely. Therefore
// [Bus.Publish], [Batch.Wait] and [Bus.EnsureStream] return when the data is on disk. In the mode
// [DurabilityCommit] concurrent publishes share one syncfs (group commit), which is several times
// faster than the server's sync after every write ([DurabilityAlways]). Without syncfs, commit
// becomes always; [Info] and the log report it. Writes through [Bus.JetStream] or a key-value
// bucket are durable after the next [Bus.Commit].
//
// On two cores and an SSD a publish takes about 0.2 ms, and 16 concurrent publishers reach about
// 20 000 messages a second. syncfs syncs the whole filesystem: while another program writes
// hundreds of megabytes a second, one publish in a hundred takes tens of milliseconds. A sync
// after every write is slower still.
//
// The durability of an external server is its own: Commit does nothing there.
//
// Positions of consumers are not covered: JetStream writes them later, and after a power cut a
// consumer may receive messages again that it had acknowledged.
package bus
