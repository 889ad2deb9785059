package pages

import (
	"regexp"
	"strings"
)

// A comment that is alone on a block's first line may name a file.
var named = regexp.MustCompile(`^(?:#|//|--|;) ([\w-][\w./-]*\.\w+)\n`)

// Files returns the files that a page shows, by name. A file is a block whose first line is
// a comment with nothing but the file's name; the line is part of it.
func Files(page string) map[string]string {
	all := map[string]string{}
	for _, b := range Blocks(page) {
		if m := named.FindStringSubmatch(b.Text); m != nil && b.Language != "console" && !strings.Contains(m[1], "..") {
			all[m[1]] = b.Text
		}
	}
	return all
}
