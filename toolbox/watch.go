package toolbox

// Watch counts the changes of what a caller may see of a box.
type Watch struct{ view *view }

// Watch returns a Watch. It calls changed after each change until it is stopped; changed must not block, and may call
// [Watch.Changes].
func (b *Box) Watch(caller string, changed func()) *Watch {
	w := &view{box: b, caller: caller}
	b.mu.Lock()
	b.views[w] = struct{}{}
	b.mu.Unlock()
	w.sync()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = changed
	return &Watch{w}
}

// Changes returns how often the tools, the resources with their templates, and the prompts have changed, with all changes that
// were made before the call.
func (w *Watch) Changes() (tools, resources, prompts uint64) {
	w.view.sync()
	w.view.mu.Lock()
	defer w.view.mu.Unlock()
	n := w.view.changes
	return n[kindTool], n[kindResource] + n[kindTemplate], n[kindPrompt]
}

// Stop ends the calls of changed. One may be under way.
func (w *Watch) Stop() { w.view.stop() }
