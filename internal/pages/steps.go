package pages

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Step is one command of a walk: what is typed in which terminal, and what the page says
// that comes then.
type Step struct {
	Terminal string // a capital letter
	SQL      bool   // typed at psql's prompt, not at the shell's
	Input    string // with a newline behind each line but the last
	Want     []string
	Line     int
}

// ShowsRefusal reports whether the page says that a former holder's write is refused.
func (s Step) ShowsRefusal() bool {
	return slices.ContainsFunc(s.Want, func(line string) bool {
		return strings.Contains(line, "stale fencing token") || strings.Contains(line, "WF001")
	})
}

// A prompt is a terminal's letter with $ for the shell, => for psql.
var prompt = regexp.MustCompile(`^([A-Z])(\$|=>) (.*)$`)

// Steps returns the commands in a page's blocks of the language console. A command begins
// with a prompt, "A$ " or "A=> ", and goes on in lines that begin with "> ". The lines
// behind it, up to the next prompt or the block's end, are its output.
func Steps(page string) (all []Step, err error) {
	for _, b := range Blocks(page) {
		if b.Language != "console" {
			continue
		}
		began := len(all)
		for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
			if m := prompt.FindStringSubmatch(line); m != nil {
				all = append(all, Step{Terminal: m[1], SQL: m[2] == "=>", Input: m[3], Line: b.Line + 1 + i})
				continue
			}
			if len(all) == began {
				return nil, fmt.Errorf("line %d: a block of the language console begins with a prompt, not with %q", b.Line+1+i, line)
			}
			last := &all[len(all)-1]
			if more, found := strings.CutPrefix(line, "> "); found && len(last.Want) == 0 {
				last.Input += "\n" + more
			} else {
				last.Want = append(last.Want, line)
			}
		}
	}
	return all, nil
}

var blanks = regexp.MustCompile(`[ \t]+`)

// Matches tells whether output is what a page shows. Blanks count as one, those at the end
// of a line and empty lines at the end not at all. In a line, … stands for any text; a
// line that is … alone stands for any lines, none included.
func Matches(want []string, output string) bool {
	return match(tidy(want), tidy(strings.Split(output, "\n")))
}

func tidy(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = strings.TrimRight(blanks.ReplaceAllString(line, " "), " \r")
	}
	for len(all) > 0 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

func match(want, got []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if want[0] == "…" {
		for i := range len(got) + 1 {
			if match(want[1:], got[i:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && matchLine(want[0], got[0]) && match(want[1:], got[1:])
}

func matchLine(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}
