// Package yjs has only tests, with the build tag interop: see bridge_test.go.
package yjs
