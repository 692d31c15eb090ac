// Record draws the recording of the terminal's screens: an animated SVG of the demonstration, the same each time.
//
//	go run ./tools/record                # docs/screens.svg
//	go run ./tools/record -out x.svg
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/parleyhub/parley/internal/app/terminal"
	"github.com/parleyhub/parley/internal/hub/events"
)

func main() {
	out := flag.String("out", "docs/screens.svg", "the file")
	flag.Parse()
	if err := os.WriteFile(*out, record(), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "record: %v\n", err)
		os.Exit(1)
	}
}

const (
	columns = 100
	rows    = 26
)

// scene is what the recording shows next.
type scene struct {
	keys    []string
	pressed string  // named to the viewer
	says    string  // what one sees
	change  func()  // what has happened in the hub meanwhile
	seconds float64 // how long it is shown
}

// record plays the scenes, and draws what the terminal shows.
func record() []byte {
	time.Local = time.UTC // clocks are shown in it
	h := newHub()
	s := terminal.NewStill(h, "~/.parley/hub.sock", columns, rows, h.time)
	defer s.Close()
	film := film{width: columns, height: rows, title: "parley ui"}
	for _, x := range []scene{
		{says: "What waits for me?", seconds: 4},
		{keys: []string{"a"}, pressed: "a", says: "Allowed", change: h.answered, seconds: 2.5},
		{keys: []string{"3"}, pressed: "3", says: "What do they do?", seconds: 3},
		{keys: []string{"down", "down", "down", "down"}, pressed: "↓", says: "Why did this one fail?", seconds: 4},
		{keys: []string{"down", "down", "enter"}, pressed: "Enter", says: "What did this one change?", seconds: 5},
		{keys: []string{"5"}, pressed: "5", says: "Swarms and queues", seconds: 3},
		{keys: []string{"enter"}, pressed: "Enter", says: "The plan, and who did what when", seconds: 5},
		{keys: []string{"6"}, pressed: "6", says: "Who is where?", seconds: 3},
		{keys: []string{"7", "enter", "enter", "down", "down", "end", " and its small ones"}, pressed: "7 Enter", says: "Write in a document", seconds: 3},
		{change: func() {
			h.write("2. The planets, by mars\n")
			s.Events(events.Event{Kind: events.DocumentChanged, Subject: "guide"})
		}, says: "Agents write in it, too", seconds: 3},
		{keys: []string{"esc", "9"}, pressed: "9", says: "What did today cost?", seconds: 4},
	} {
		if x.change != nil {
			x.change()
		}
		s.Keys(x.keys...)
		film.add(s.Lines(), x)
	}
	return film.svg()
}
