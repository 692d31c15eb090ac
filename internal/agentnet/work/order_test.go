package work

import "testing"

func FuzzDecodeOrder(f *testing.F) {
	f.Add([]byte(`{"taskId":"T","taskDescription":"d","requiredCapabilities":["go"],"contextData":{"a":1},"generation":2,"attempts":-1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = decodeOrder(data, 1, "c") }) // it must not panic
}

// A forged record must not make a worker acknowledge, with its own permissions, anything but a
// message of a queue.
func TestAForgedRecordAcknowledgesNothingElse(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]bool{
		"$JS.ACK.GLOBAL_WORKQUEUE_go.workers.1.2.3.1700000000000000000.0":              true,
		"$JS.ACK._.hash.GLOBAL_WORKQUEUE_go.workers.1.2.3.1700000000000000000.0":       true,
		"$JS.ACK.hub.hash.GLOBAL_WORKQUEUE_go.workers.1.2.3.1700000000000000000.0.rnd": true,
		"": false,
		"$JS.ACK.shop_ROADMAP.reader.1.2.3.1700000000000000000.0":                         false,
		"$JS.ACK.GLOBAL_WORKQUEUE_go.other.1.2.3.1700000000000000000.0":                   false,
		"$JS.ACK._.hash.shop_ROADMAP.GLOBAL_WORKQUEUE_go.workers.3.1700000000000000000.0": false,
		"$JS.ACK.GLOBAL_WORKQUEUE_go.workers":                                             false,
		"$JS.ACK.GLOBAL_WORKQUEUE_go.workers.1.2.3.>.0":                                   false,
		"$JS.API.STREAM.DELETE.GLOBAL_WORKQUEUE_go.workers.1.2.3":                         false,
		"global.agent.7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11":                               false,
	} {
		if got := isAckSubject(subject); got != want {
			t.Errorf("%q: %v", subject, got)
		}
	}
}
