package assignment

// The decoders of requests.
var (
	DecodeAnswer   = decodeAnswer
	DecodeProgress = decodeProgress
)
