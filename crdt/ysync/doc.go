// Package ysync lets browsers and other clients of y-websocket edit a replica's
// document: it speaks y-protocols 1.0 over WebSocket.
//
//	http.Handle("/documents/{name}", ysync.NewServer(ysync.Options{Open: …}))
//
// A client's updates are checked as any other's before they are applied. One that is refused
// closes the connection with a code from 4400 on, upon which y-websocket does not connect
// again by itself. Awareness (cursors, names) is passed on and never stored.
package ysync
