// Package documents has only tests, with the build tag interop: see documents_test.go.
package documents
