package ysync

// Bounds, for tests.
const (
	MaxLarge   = maxLarge
	SmallFrame = smallFrame
)

// Decode reads a frame and what is in it, for tests.
func Decode(data []byte) {
	f, err := decodeFrame(data)
	if err == nil && f.kind == frameAwareness {
		if list, err := decodeAwareness(f.payload); err == nil {
			encodePresences(list)
		}
	}
}
