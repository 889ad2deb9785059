package users

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/wirefence/wirefence/internal/watched"
)

// File is a user file in PgBouncer's format: a line holds a name and a stored
// password, each in double quotes, in which a double quote is doubled. The
// password is a SCRAM secret as in pg_authid.rolpassword, or in clear. Empty
// lines and those that begin with ; or # are skipped.
type File struct {
	entries *watched.Value[fileEntries]
}

type fileEntries struct {
	byUser     map[string]fileEntry
	iterations int // of most of the secrets; 0 if there is none
}

type fileEntry struct {
	entry *Entry
	err   error // why the stored password can't be used
}

// OpenFile reads a user file. failed gets the error if a later change can't be read; the
// last good content stays in use.
func OpenFile(name string, failed func(error)) (*File, error) {
	entries, err := watched.New(func() (fileEntries, error) { return readFile(name) }, failed, name)
	if err != nil {
		return nil, err
	}
	return &File{entries}, nil
}

func (f *File) lookup(user string) (*Entry, error) {
	l, ok := f.entries.Get().byUser[user]
	if !ok {
		return nil, ErrUnknown
	}
	return l.entry, l.err
}

func readFile(name string) (all fileEntries, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return fileEntries{}, err
	}
	all.byUser = map[string]fileEntry{}
	counts := map[int]int{}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		content := strings.TrimSpace(scanner.Text())
		if content == "" || content[0] == ';' || content[0] == '#' {
			continue
		}
		user, rest, ok := quoted(content)
		stored, _, ok2 := quoted(strings.TrimSpace(rest))
		if !ok || !ok2 || user == "" {
			// The line may hold a password, so the error doesn't quote it.
			return fileEntries{}, fmt.Errorf(`%s:%d: the line is not of the form "user" "SCRAM secret"`, name, n)
		}
		if _, twice := all.byUser[user]; twice {
			return fileEntries{}, fmt.Errorf("%s:%d: user %q is there twice", name, n, user)
		}
		if stored == "" {
			all.byUser[user] = fileEntry{err: ErrUnknown} // as a role without a password
			continue
		}
		e, err := newEntry(stored)
		all.byUser[user] = fileEntry{e, err}
		if e != nil {
			n := e.iterations()
			counts[n]++
			if most := counts[all.iterations]; counts[n] > most || counts[n] == most && n < all.iterations {
				all.iterations = n
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return fileEntries{}, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

// quoted splits a word in double quotes off the text.
func quoted(text string) (word, rest string, ok bool) {
	text, ok = strings.CutPrefix(text, `"`)
	if !ok {
		return "", text, false
	}
	var b strings.Builder
	for {
		part, after, found := strings.Cut(text, `"`)
		if !found {
			return "", text, false
		}
		b.WriteString(part)
		if text, ok = strings.CutPrefix(after, `"`); !ok {
			return b.String(), after, true
		}
		b.WriteByte('"')
	}
}
