package terminal

import (
	"context"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
)

// model is the state of the program. Only Update changes it.
type model struct {
	ctx  context.Context
	o    Options
	link *link
	now  func() time.Time
	tick func(time.Duration, tea.Msg) tea.Cmd
	next tea.Cmd // waits for the link's next report

	width, height int
	screens       []*screen
	at            int // the shown screen
	page          *page
	prompt        *prompt
	editor        *editor
	replicas      []*replica // of the documents that are edited, and of those that the hub has not got whole yet
	leaves        bool       // the user was told what is lost
	help          bool
	mouse         bool

	up       bool
	awayFrom time.Time
	notice   string
	noticeAs role
	status   *dialect.Status
	waiting  int // how many things wait for the user

	loading map[*screen]bool
	stale   map[*screen]bool
	settles bool
}

// subject is what an action of the user is about: the selected row or the page that is open.
type subject struct {
	task, agent, context, document, swarm, loop, dir string
	item                                             string // failed work of a queue
	dismissible                                      string // the list of a failed loop
	thread, session                                  string // where w and m write
	claim, holder                                    string // of files, and who holds them
	state                                            string
	question                                         *hub.PermissionData
}

// row is a line of a list.
type row struct {
	key   string // stable over reloads
	cells []string
	state string    // colours the row's mark
	at    time.Time // shown as its age
	until time.Time // shown instead: how long it lasts
	subject
	why  []line // it failed
	find string // in lower case, what a filter looks in
}

// table is what a screen shows.
type table struct {
	columns []column
	rows    []row
	above   []line // above the list
	total   int    // if there are more than rows
	rest    []line // below the list if nothing is to say about the selected row
}

// column is a column of a table. The last one takes what is left. A negative width is that of a column that only wide
// terminals show.
type column struct {
	name  string
	width int
}

// wide is the width from which a terminal shows all columns.
const wide = 110

// screen is one of the screens.
type screen struct {
	name, short string
	none        string   // what it says without rows
	kinds       []string // the beginnings of the events that change it
	load        func(ctx context.Context, h Hub, changed []events.Event) (table, error)
	open        func(r row) *page // nil opens the row's task
	preview     func(r row) []line
	next        func() // what the key g changes: how it is grouped

	table  table
	loaded bool
	filter string
	shown  []int // of the rows that the filter selects; nil means all
	cursor int
	top    int
	queue  []events.Event // since the last load

	replays bool // what it shows can be shown again as it happened
	playing bool
	run     int // counts replays
	hidden  int // the newest rows that a replay has not reached
}

type (
	tableMsg struct {
		s     *screen
		table table
		err   error
	}
	statusMsg struct{ status *dialect.Status }
	noticeMsg struct {
		text string
		as   role
	}
	refreshMsg struct{}
	clockMsg   struct{}
	idleMsg    struct{}
)

func newModel(ctx context.Context, o Options, l *link) *model {
	m := &model{
		ctx: ctx, o: o, link: l, next: l.next, now: time.Now, mouse: !o.NoMouse, width: 80, height: 24,
		tick:    func(d time.Duration, msg tea.Msg) tea.Cmd { return func() tea.Msg { return later(ctx, d, msg) } },
		loading: map[*screen]bool{}, stale: map[*screen]bool{},
	}
	m.screens = newScreens(func() time.Time { return m.now() })
	m.awayFrom = m.now()
	m.at = min(max(o.Screen-1, 0), len(m.screens)-1)
	return m
}

// later returns msg after a time, nil if ctx ends before.
func later(ctx context.Context, d time.Duration, msg tea.Msg) tea.Msg {
	if !wait.Pause(ctx, d) {
		return nil
	}
	return msg
}

// Init implements [tea.Model].
func (m *model) Init() tea.Cmd {
	return tea.Batch(m.next, m.tick(time.Second, clockMsg{}), m.tick(reloadIdle, idleMsg{}))
}

func (m *model) current() *screen { return m.screens[m.at] }

// Update implements [tea.Model].
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) { return m, m.update(msg) }

func (m *model) update(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 1), max(msg.Height, 1)
	case tea.KeyPressMsg:
		return m.key(msg)
	case tea.PasteMsg:
		return m.paste(msg.Content)
	case tea.MouseWheelMsg:
		if msg.Button == tea.MouseWheelUp {
			m.move(-3)
		} else {
			m.move(3)
		}
	case tea.MouseClickMsg:
		return m.click(msg.X, msg.Y)
	case []feedMsg:
		cmds := []tea.Cmd{m.next}
		for _, f := range msg {
			cmds = append(cmds, m.feed(f))
		}
		return tea.Batch(cmds...)
	case tableMsg:
		return m.tableLoaded(msg)
	case pageMsg:
		return m.pageLoaded(msg)
	case streamMsg:
		return m.streamed(msg)
	case statusMsg:
		m.status = msg.status
	case noticeMsg:
		m.notice, m.noticeAs = msg.text, msg.as
		if msg.as == bad { // nothing has changed
			return nil
		}
		return m.reload()
	case restMsg:
		return m.synced(msg)
	case replayMsg:
		return m.replayed(msg)
	case refreshMsg:
		m.settles = false
		return m.reload()
	case idleMsg:
		return tea.Batch(m.tick(reloadIdle, idleMsg{}), m.reload(), m.syncDocuments(nil))
	case clockMsg:
		return m.tick(time.Second, clockMsg{})
	}
	return nil
}

// feed handles a report of the link.
func (m *model) feed(f feedMsg) tea.Cmd {
	switch {
	case f.away != nil:
		if m.up {
			m.awayFrom = m.now()
			if strings.HasPrefix(m.notice, cannotLoad) { // that the hub is away says why
				m.notice = ""
			}
		}
		m.up = false
		return nil
	case f.up:
		m.up, m.notice = true, ""
		for _, s := range m.screens {
			s.loaded, s.queue = false, nil
		}
		return tea.Batch(m.reload(), m.syncDocuments(nil))
	}
	documents := m.syncDocuments(f.events)
	changed := false
	for _, e := range f.events {
		for i, s := range m.screens {
			if s.concerns(e) {
				s.queue = append(s.queue, e)
				if len(s.queue) > maxQueue {
					s.queue = s.queue[len(s.queue)-maxQueue:]
				}
				changed = changed || i == m.at || i == 0
			}
		}
		changed = changed || m.page != nil && m.page.concerns(e)
	}
	if !changed || m.settles {
		return documents
	}
	m.settles = true
	return tea.Batch(documents, m.tick(settle, refreshMsg{}))
}

// maxQueue bounds the events that a screen keeps until it is shown.
const maxQueue = 4096

func (s *screen) concerns(e events.Event) bool {
	return slices.ContainsFunc(s.kinds, func(k string) bool { return strings.HasPrefix(string(e.Kind), k) })
}

// reload loads what is shown again, and what waits for the user.
func (m *model) reload() tea.Cmd {
	cmds := []tea.Cmd{m.load(m.current()), m.loadStatus()}
	if m.at != 0 {
		cmds = append(cmds, m.load(m.screens[0]))
	}
	if m.page != nil {
		cmds = append(cmds, m.loadPage(m.page))
	}
	return tea.Batch(cmds...)
}

func (m *model) load(s *screen) tea.Cmd {
	if m.loading[s] {
		m.stale[s] = true
		return nil
	}
	m.loading[s] = true
	changed := s.queue
	if !s.loaded {
		changed = nil
	} else if changed == nil {
		changed = []events.Event{}
	}
	s.queue = nil
	return func() tea.Msg {
		r := tableMsg{s: s}
		r.err = m.link.call(func(ctx context.Context, h Hub) (err error) {
			r.table, err = s.load(ctx, h, changed)
			return err
		})
		return r
	}
}

func (m *model) loadStatus() tea.Cmd {
	return func() tea.Msg {
		var r statusMsg
		err := m.link.call(func(ctx context.Context, h Hub) (err error) {
			r.status, err = h.Status(ctx)
			return err
		})
		if err != nil {
			return nil // the link says it
		}
		return r
	}
}

// cannotLoad begins what is said about rows or a page that cannot be loaded.
const cannotLoad = "This cannot be loaded: "

func (m *model) tableLoaded(r tableMsg) tea.Cmd {
	m.loading[r.s] = false
	if r.err != nil {
		r.s.loaded = false
		if m.up && m.current() == r.s {
			m.notice, m.noticeAs = cannotLoad+clean(r.err.Error()), bad
		}
	} else {
		r.s.set(r.table)
	}
	m.waiting = max(m.screens[0].table.total, len(m.screens[0].table.rows))
	if m.stale[r.s] {
		m.stale[r.s] = false
		return m.load(r.s)
	}
	return nil
}

// set replaces the rows; the cursor stays on its row.
func (s *screen) set(t table) {
	key, newest := s.row().key, s.newest()
	s.table, s.loaded = t, true
	s.refilter()
	s.hide(newest)
	for i := range s.len() {
		if key != "" && s.rowAt(i).key == key {
			s.cursor = i
			return
		}
	}
	s.cursor = min(s.cursor, max(s.len()-1, 0))
}

// newest returns the key of the newest row that a replay shows, "" without one.
func (s *screen) newest() string {
	if s.hidden == 0 {
		return ""
	}
	return s.rowAt(0).key
}

// hide hides the rows before the one with this key.
func (s *screen) hide(key string) {
	s.hidden = 0
	for i := range s.len() {
		if key != "" && s.rowAt(i).key == key {
			s.hidden = i
			return
		}
	}
}

func (s *screen) refilter() {
	s.shown, s.hidden = nil, 0
	if s.filter == "" {
		return
	}
	s.shown = []int{}
	words := strings.Fields(strings.ToLower(s.filter))
	for i := range s.table.rows {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s.table.rows[i].find, w) }) {
			s.shown = append(s.shown, i)
		}
	}
	s.cursor = min(s.cursor, max(len(s.shown)-1, 0))
}

func (s *screen) len() int {
	if s.shown != nil {
		return len(s.shown) - s.hidden
	}
	return len(s.table.rows) - s.hidden
}

// rowAt returns a row that is shown; negative ones are those that a replay has not reached.
func (s *screen) rowAt(i int) row {
	i += s.hidden
	if s.shown != nil {
		i = s.shown[i]
	}
	return s.table.rows[i]
}

// row returns the selected row, the zero row if there is none.
func (s *screen) row() row {
	if s.cursor < 0 || s.cursor >= s.len() {
		return row{}
	}
	return s.rowAt(s.cursor)
}

// subject returns what actions are about.
func (m *model) subject() subject {
	if m.page != nil {
		return m.page.subject
	}
	return m.current().row().subject
}

func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if name == "ctrl+c" {
		return m.quit()
	}
	m.leaves = false
	if m.prompt != nil {
		return m.promptKey(k, name)
	}
	if m.editor != nil {
		return m.editorKey(k, name)
	}
	if m.help {
		m.help = false
		return nil
	}
	m.notice = ""
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= len(m.screens) {
		return m.show(n - 1)
	}
	switch name {
	case "q":
		return m.quit()
	case "?":
		m.help = true
	case "tab":
		return m.show((m.at + 1) % len(m.screens))
	case "shift+tab":
		return m.show((m.at + len(m.screens) - 1) % len(m.screens))
	case ":":
		m.palette()
	case "/":
		m.startFilter()
	case "esc":
		m.back()
	case "enter":
		return m.enter()
	case "M":
		m.mouse = !m.mouse
	case "p":
		return m.playKey()
	case ",", ".":
		if s := m.current(); s.hidden > 0 && m.page == nil {
			s.playing = false
			s.step(map[string]int{",": -1, ".": 1}[name])
		}
	case "g":
		if next := m.current().next; next != nil && m.page == nil {
			next()
			return m.load(m.current())
		}
	default:
		if !m.moveKey(name) {
			return m.act(name)
		}
	}
	return nil
}

// quit leaves. The user is told first what would be lost.
func (m *model) quit() tea.Cmd {
	name := m.unsaved()
	if name == "" || m.leaves {
		return tea.Quit
	}
	m.leaves = true
	return m.say("The hub lacks what you wrote in "+clean(name)+"; Ctrl-C leaves without it.", bad)
}

// paste inserts what the terminal has pasted.
func (m *model) paste(text string) tea.Cmd {
	switch {
	case m.prompt != nil:
		m.prompt.insert(text)
		m.prompt.changed()
	case m.editor != nil:
		m.editor.insert(text)
		return m.sync(m.editor.replica)
	}
	return nil
}

func (m *model) moveKey(name string) bool {
	half := max(m.body()-1, 1)
	step, ok := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -half, "pgdown": half, "ctrl+u": -half, "ctrl+d": half, "space": half,
		"home": -1 << 30, "end": 1 << 30, "G": 1 << 30,
	}[name]
	if ok {
		m.move(step)
	}
	return ok
}

// move moves the cursor of the list, or the text of the page.
func (m *model) move(by int) {
	if m.editor != nil {
		m.editor.moveRows(by)
		return
	}
	if p := m.page; p != nil {
		p.top = max(p.top+by, 0)
		p.follow = false
		return
	}
	s := m.current()
	s.cursor = min(max(s.cursor+by, 0), max(s.len()-1, 0))
}

// show changes the screen.
func (m *model) show(i int) tea.Cmd {
	m.at, m.help = i, false
	m.closePage()
	if m.editor != nil {
		return m.closeEditor()
	}
	return m.reload()
}

func (m *model) back() {
	switch s := m.current(); {
	case m.page != nil:
		m.closePage()
	case s.stopReplay():
	case s.filter != "":
		s.filter = ""
		s.refilter()
	}
}

func (m *model) enter() tea.Cmd {
	if m.page != nil && m.page.document != "" {
		return m.openEditor(m.page.document)
	}
	if m.page != nil {
		return nil
	}
	s := m.current()
	r := s.row()
	var p *page
	switch {
	case r.key == "":
		return nil
	case s.open != nil:
		p = s.open(r)
	case r.task != "":
		p = taskPage(r.subject)
	}
	return m.openPage(p)
}

func (m *model) click(x, y int) tea.Cmd {
	switch {
	case m.prompt != nil:
	case y == 0:
		for i, t := range m.tabs() {
			if x >= t.from && x < t.to {
				return m.show(i)
			}
		}
	case m.editor != nil:
		m.editor.click(x, y-2)
	case m.page == nil:
		s := m.current()
		if i := s.top + y - m.listTop(); y >= m.listTop() && i < s.len() {
			if i == s.cursor {
				return m.enter()
			}
			s.cursor = i
		}
	}
	return nil
}

func (m *model) promptKey(k tea.KeyPressMsg, name string) tea.Cmd {
	p := m.prompt
	switch name {
	case "esc":
		m.prompt = nil
		if p.change != nil {
			p.change("")
		}
	case "enter":
		m.prompt = nil
		if p.submit != nil {
			return p.submit(strings.TrimSpace(string(p.text)))
		}
	case "tab":
		if p.label == ":" {
			p.complete(m.words())
		}
	default:
		p.key(k)
	}
	return nil
}

func (m *model) startFilter() {
	if m.page != nil {
		p := m.page
		m.prompt = &prompt{label: "/", change: func(text string) { p.find(text) }}
		return
	}
	s := m.current()
	m.prompt = &prompt{label: "/", text: []rune(s.filter), at: len([]rune(s.filter)), change: func(text string) {
		s.filter = text
		s.refilter()
	}}
}

// openDir starts the user's shell in a directory, and returns to the screens at its end.
func (m *model) openDir(dir string) tea.Cmd {
	if dir == "" || m.o.Shell == "" {
		return m.say("There is no directory to open.", waits)
	}
	cmd := exec.CommandContext(m.ctx, m.o.Shell)
	cmd.Dir = dir
	return tea.ExecProcess(cmd, func(err error) tea.Msg {
		if err != nil {
			return noticeMsg{clean(err.Error()), bad}
		}
		return nil
	})
}

func (m *model) say(text string, as role) tea.Cmd {
	m.notice, m.noticeAs = text, as
	return nil
}
