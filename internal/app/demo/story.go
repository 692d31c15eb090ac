package demo

import "strings"

// Step is something that an agent of the demonstration does.
type Step struct {
	Says string // an answer, which is written word by word

	Tool, Title string // or it uses a tool
	Input       map[string]any
	Output      string
	Asks        bool   // for permission before
	File        string // to which the tool adds Content
	Content     string

	Fails string // or the turn fails
}

// Part is what an agent does with a prompt.
type Part struct {
	Steps   []Step
	Cost    float64 // in USD
	In, Out int     // tokens
}

// Agent is an agent of the demonstration.
type Agent struct{ ID, About string }

// Agents returns the agents.
func Agents() []Agent {
	return []Agent{
		{"sun", "Leads and reviews"}, {"mars", "Writes chapters"}, {"venus", "Writes chapters and publishes"},
		{"saturn", "Reviews what others wrote"}, {"titan", "Writes chapters, until its quota is used up"},
	}
}

// Task is a prompt of the demonstration.
type Task struct{ Agent, Prompt string }

// Tasks returns the tasks that the user of the demonstration gives, in their order.
func Tasks() []Task {
	return []Task{
		{"mars", "Add a paragraph about Titan to moons.md"},
		{"saturn", "Review the last change of moons.md"},
		{"titan", "Count the words of all chapters"},
		{"venus", "Publish the guide"},
	}
}

// Guide is the swarm's task, Chapters its parts before the review.
const Guide = "write a short guide to the solar system"

// Chapters returns the chapters of the guide.
func Chapters() []string { return []string{"planets", "moons", "comets", "rings"} }

// titanText is what mars adds to the chapter about moons.
const titanText = "\nTitan is larger than Mercury. Its rivers and lakes are liquid methane,\nand its sky is orange.\n"

// PartFor returns what an agent does with a prompt.
func PartFor(agent, prompt string) Part {
	prompt = strings.ToLower(prompt)
	has := func(words string) bool { return strings.Contains(prompt, words) }
	switch {
	case agent == "titan":
		return Part{Steps: []Step{
			{Tool: "Bash", Title: "Bash: wc -w *.md", Input: map[string]any{"command": "wc -w *.md"}, Output: "  18 moons.md\n  11 planets.md\n  29 total"},
			{Fails: "the quota of this month is used up; it is renewed on the first, or buy more at the provider's page"},
		}}
	case has("publish"):
		return Part{Cost: 0.07, In: 3100, Out: 240, Steps: []Step{
			{Tool: "Read", Title: "Read Makefile", Input: map[string]any{"file_path": "Makefile"}, Output: "publish:\n\trsync -a --delete site/ web.example:/srv/guide"},
			{Tool: "Bash", Title: "Bash: make publish", Input: map[string]any{"command": "make publish"}, Asks: true, Output: "sent 4 files"},
			{Says: "The guide is published: four pages."},
		}}
	case has("titan"):
		return Part{Cost: 0.42, In: 18_400, Out: 1200, Steps: []Step{
			{Tool: "Read", Title: "Read moons.md", Input: map[string]any{"file_path": "moons.md"}, Output: "# Moons\n\nMost planets have some."},
			{Tool: "Edit", Title: "Edit moons.md", Input: map[string]any{"file_path": "moons.md", "new_string": titanText}, File: "moons.md", Content: titanText, Output: "moons.md was changed"},
			{Says: "moons.md has a paragraph about Titan now: its size, its methane lakes and its orange sky."},
		}}
	case has("review the last change"):
		return Part{Cost: 0.18, In: 9200, Out: 610, Steps: []Step{
			{Tool: "Bash", Title: "Bash: git diff", Input: map[string]any{"command": "git diff moons.md"}, Output: "+Titan is larger than Mercury. …"},
			{Says: "The paragraph is right and reads well. One remark: name the probe that has landed there, Huygens."},
		}}
	case has("read all"):
		return Part{Cost: 0.11, In: 6400, Out: 180, Steps: []Step{{Says: "Four chapters, no contradiction, no complaint."}}}
	}
	for _, about := range Chapters() {
		if has("about " + about) {
			return Part{Cost: 0.09, In: 2300, Out: 420, Steps: []Step{{Says: "The " + about + " of the solar system are worth a visit: this chapter says when, and what to pack."}}}
		}
	}
	return Part{Cost: 0.01, In: 400, Out: 60, Steps: []Step{{Says: "This is a demonstration: I have no model. Ask me to publish the guide."}}}
}
