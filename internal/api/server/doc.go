// Package server puts the hub on the Unix socket and on HTTP. It owns listeners,
// connections, limits and access; what requests mean is the handlers' (package
// dialect, and whatever is mounted).
//
// The socket speaks newline-delimited JSON-RPC. Many requests of a connection
// run at once, their answers come in the order in which they are ready, and no
// more is read while the limit of requests is reached. Events of a stream are
// notifications of the method stream/event. A line that is too long is answered
// with an error and skipped. A client that does not read is cut off, one that
// goes away leaves its tasks running.
//
// HTTP speaks the same at POST / and POST /stream, and serves GET /health and
// the documents below /.well-known. Only loopback is bound without a token. A
// request's Host and Origin must be the server's own (DNS rebinding), and with
// a token all but a bare GET /health needs it.
package server
