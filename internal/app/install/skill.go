package install

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

//go:embed skill.md
var skillBody string

const (
	skillFile        = "SKILL.md"
	skillName        = "parley"
	skillDescription = "Talk with other coding agents through Parley - ask an open session of Claude Code, Codex or Gemini CLI for a review or an answer, " +
		"claim files, channels of this project, mail, tasks. Use when the user wants another agent asked, told, waited for, or given work, and when Parley says that something is waiting."
)

// Skill returns the text of the skill that tells an agent what it can do with Parley, in the format of Agent Skills.
func Skill() string {
	return "---\nname: " + skillName + "\ndescription: " + skillDescription + "\n---\n\n" + skillBody
}

// Context returns the same text for a program without skills.
func Context() string { return skillBody }

// skillIn is the skill in the directory of a program.
func skillIn(dir string) file {
	return file{path: filepath.Join(dir, "skills", skillName, skillFile), skill: marked(Skill())}
}

// markedScript is [marked] for a file of JavaScript.
func markedScript(s string) string {
	return fmt.Sprintf("%s\n// parley install %s: parley uninstall takes this file out, unless it was edited.\n", s, skillSum(s))
}

// marked adds a line to a text by which it is known later, also by another version of Parley, and only if nobody has edited it.
func marked(s string) string {
	return fmt.Sprintf("%s\n<!-- parley install %s: parley uninstall takes this file out, unless it was edited. -->\n", s, skillSum(s))
}

func skillSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

var skillMarks = text.Pattern(`(?m)^(?:<!--|//) parley install ([0-9a-f]{12}): .*\r?\n?`)

// ownSkill returns the offset behind the skill that Parley has written at the beginning of a file; 0 if it has not, or it was edited.
func ownSkill(doc []byte) (end int) {
	at := skillMarks().FindSubmatchIndex(doc)
	if at == nil {
		return 0
	}
	s := strings.TrimSuffix(strings.ReplaceAll(string(doc[:at[0]]), "\r\n", "\n"), "\n")
	if string(doc[at[2]:at[3]]) != skillSum(s) {
		return 0
	}
	return at[1]
}

// enterSkill writes the skill, or puts it in the place of an earlier one. A skill that its user has edited stays.
func (f file) enterSkill(c Change) (Change, error) {
	switch own := ownSkill(c.before); {
	case own > 0 && string(c.before[:own]) == f.skill:
	case own > 0:
		c.replace(0, own, f.skill)
	case skillMarks().Match(c.before): // edited
	case len(bytes.TrimSpace(c.before)) > 0:
		return c, &Error{Code: CodeForeign, Message: f.path + " is there already, and it is not Parley's", Remedy: "rename or remove it, and repeat the command"}
	default:
		c.after, c.Inserted = append(bytes.Clone(c.before), f.skill...), []string{f.skill}
	}
	return c, nil
}

// leaveSkill takes the skill out; what its user has added behind it stays, and so does one that was edited.
func (c *Change) leaveSkill() { c.after = c.before[ownSkill(c.before):] }
