package doorbell

import "time"

// SetAnswerTime sets how long a message waits to be held or refused.
func (b *Socket) SetAnswerTime(d time.Duration) { b.answerTime = d }
