package install

// Marked is a skill as another version of Parley has written it.
func Marked(text string) string { return marked(text) }
