package install_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/install"
)

const claudesSkill = ".claude/skills/parley/SKILL.md"

func TestAnEarlierSkillIsReplaced(t *testing.T) {
	d := newHome(t)
	d.enter(t)
	now := d.files(t)[claudesSkill]
	if !strings.HasPrefix(now, install.Skill()) {
		t.Fatalf("the skill is %q", now)
	}
	const earlier = "An earlier text.\n\n<!-- parley install 6f0b3d8f1a94: parley uninstall takes this file out, unless it was edited. -->\n"
	d.write(t, claudesSkill, earlier)
	if n := d.enter(t); n != 0 { // nobody knows whether Parley has written that
		t.Errorf("%d changes of an edited skill", n)
	}
	d.leave(t)
	if got := d.files(t)[claudesSkill]; got != earlier {
		t.Errorf("an edited skill became %q", got)
	}
	d.write(t, claudesSkill, install.Marked("An earlier text.\n")+"mine\n")
	claude, _ := install.Find("claude")
	if s, err := claude.State(d.Place); err != nil || len(s.Outdated) != 1 {
		t.Errorf("an earlier skill: %+v, %v", s, err)
	}
	d.enter(t)
	if got := d.files(t)[claudesSkill]; got != now+"mine\n" {
		t.Errorf("an earlier skill became %q", got)
	}
	d.leave(t)
	if got := d.files(t)[claudesSkill]; got != "mine\n" {
		t.Errorf("what was added became %q", got)
	}
	d.write(t, claudesSkill, install.Skill())
	if _, err := claude.Enter(d.Place); err == nil || !strings.Contains(err.Error(), filepath.FromSlash(claudesSkill)) {
		t.Errorf("somebody else's skill: %v", err)
	}
	if got := strings.ReplaceAll(now, "\n", "\r\n"); got != "" {
		d.write(t, claudesSkill, got)
		d.leave(t)
		if rest, ok := d.files(t)[claudesSkill]; ok {
			t.Errorf("a skill with other line ends leaves %q", rest)
		}
	}
}
