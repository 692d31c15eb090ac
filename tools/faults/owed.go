package main

import "sync"

// owed is what the clients have had acknowledged and what must therefore arrive: mail that is read, and items of work that are
// completed. It is safe for concurrent use.
type owed struct {
	mu       sync.Mutex
	mails    map[string]string // their ids, by text
	items    map[string]bool
	finished map[string]bool // completed items
}

func newOwed() *owed {
	return &owed{mails: map[string]string{}, items: map[string]bool{}, finished: map[string]bool{}}
}

func (o *owed) mailed(text, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mails[text] = id
}

func (o *owed) submitted(item string) { o.mark(o.items, item) }

func (o *owed) completed(item string) { o.mark(o.finished, item) }

func (o *owed) mark(in map[string]bool, item string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in[item] = true
}

// mailOf returns the id of an acknowledged mail; "" for none.
func (o *owed) mailOf(text string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mails[text]
}

// isCompleted reports whether an item is known to be completed.
func (o *owed) isCompleted(item string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.finished[item]
}

// unread reports whether acknowledged mail is not among the mail that was read.
func (o *owed) unread(read []event) bool {
	got := map[string]bool{}
	for _, e := range read {
		got[e.Text] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for text := range o.mails {
		if !got[text] {
			return true
		}
	}
	return false
}

// undone returns the acknowledged items that are not known to be completed.
func (o *owed) undone() (items []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for item := range o.items {
		if !o.finished[item] {
			items = append(items, item)
		}
	}
	return items
}

// completedOf returns what was sent of the items that are completed, by sender, in the order of sending: a queue has no order where
// an item comes again.
func (o *owed) completedOf(sent []operation) map[string][]string {
	found := map[string][]string{}
	for _, op := range sent {
		if o.isCompleted(itemOf(op.text())) {
			found[op.sender] = append(found[op.sender], op.text())
		}
	}
	return found
}
