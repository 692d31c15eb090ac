package chat

// Decode is the decoder of messages, for its fuzz test.
var Decode = decode
