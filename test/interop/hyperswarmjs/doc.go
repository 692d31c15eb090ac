// Package hyperswarmjs meets transport/hyperswarm with the npm packages
// hyperswarm and hyperdht, on private DHTs on loopback:
//
//	npm install --prefix test/interop
//	go test -tags interop ./test/interop/hyperswarmjs
//
// PARLEY_INTEROP_NODE_MODULES names the node_modules directory if it is another;
// then nothing may be missing.
package hyperswarmjs
