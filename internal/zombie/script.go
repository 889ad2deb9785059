package zombie

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed script.sh
var scriptSH string

// Script is a schedule as a script for bash and psql, which plays it without any proxy. It fails
// where it can't say what a run has sent.
func (o Exploring) Script(s *Schedule) (string, error) {
	var out strings.Builder
	out.WriteString(scriptSH)
	line := func(words ...string) {
		for i, word := range words {
			if i > 0 {
				word = " '" + strings.ReplaceAll(word, "'", `'\''`) + "'"
			}
			out.WriteString(word)
		}
		out.WriteByte('\n')
	}
	line("sh -c", o.Reset)
	for _, step := range s.Steps {
		m := step.Message
		if m == nil {
			switch step.What {
			case isFrozen:
				line("freeze")
			case goesOn:
				line("thaw")
			case lockEnds:
				if o.EndLock == "" {
					line("sleep", fmt.Sprint(o.LockEndsAfter.Seconds()))
				} else {
					line("sh -c", o.EndLock)
				}
			}
			continue
		}
		session := fmt.Sprint(step.Run, m.Connection)
		switch m.Kind {
		case connects:
			line("connect", session)
		case closes:
			line("hang_up", session)
		case queries:
			line("say", session, m.SQL)
		case executes:
			if m.binary {
				return "", fmt.Errorf("a parameter of %s was sent in binary, which psql can't do", m.Text())
			}
			line("say", session, m.prepared())
		case calls, copied_:
			return "", fmt.Errorf("psql can't send what the run has sent (%s)", m.Kind)
		}
	}
	var tables []string
	for _, w := range s.Writes {
		tables = append(tables, w.Table)
	}
	slices.Sort(tables)
	for _, table := range slices.Compact(tables) {
		line("psql -Xc", "TABLE "+table)
	}
	return out.String(), nil
}

// prepared is a statement with parameters, in SQL.
func (m *Message) prepared() string {
	if len(m.Parameters) == 0 {
		return m.SQL
	}
	values := []string{}
	for _, value := range m.Parameters {
		if value == nil {
			values = append(values, "NULL")
		} else {
			values = append(values, inQuotes(*value))
		}
	}
	return "PREPARE one AS " + m.SQL + "; EXECUTE one (" + strings.Join(values, ", ") + "); DEALLOCATE one"
}
