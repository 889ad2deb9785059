package pages

import (
	"fmt"
	"os"
	"strings"
)

// Block is a fenced block of code of a page.
type Block struct {
	Language string // the first word behind the fence; may be empty
	Section  string // the heading of level 2 or above that it stands under
	Line     int    // of the fence, from 1
	Text     string // with its last newline
}

// Blocks returns the blocks of a page in their order. A block in a list item has the
// item's indent taken off.
func Blocks(page string) (all []Block) {
	var open *Block
	section, indent := "", ""
	line := 0
	for text := range strings.Lines(page) {
		line++
		bare := strings.TrimLeft(text, " ")
		switch {
		case open == nil && strings.HasPrefix(bare, "```"):
			indent = text[:len(text)-len(bare)]
			language, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(bare, "```")), " ")
			open = &Block{Language: language, Section: section, Line: line}
		case open != nil && strings.TrimSpace(bare) == "```":
			all = append(all, *open)
			open = nil
		case open != nil:
			open.Text += strings.TrimPrefix(text, indent)
		case strings.HasPrefix(text, "# ") || strings.HasPrefix(text, "## "):
			section = strings.TrimSpace(strings.TrimLeft(text, "#"))
		}
	}
	return all
}

// First returns the text of a page's first block in a language, of the section that is
// named if it isn't empty.
func First(file, section, language string) (string, error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for _, b := range Blocks(string(page)) {
		if b.Language == language && (section == "" || b.Section == section) {
			return b.Text, nil
		}
	}
	return "", fmt.Errorf("%s has no block of %s in the section %q", file, language, section)
}
