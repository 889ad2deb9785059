package parsertest

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	pgquery "github.com/pganalyze/pg_query_go/v6"

	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// lexing compares how sqltext and PostgreSQL's scanner read texts, and counts
// what it compared.
type lexing struct {
	scanner    sqltext.Scanner
	texts      int // that the real scanner accepts
	statements int // whose bounds were compared
	places     int // where a fence was put
	comments   int // of those, inside a comment
	continued  int // texts in which pg_query is no judge
}

func (l *lexing) String() string {
	return fmt.Sprintf("%d texts, the bounds of %d statements, %d places for a fence, of which %d are in comments; %d texts left out",
		l.texts, l.statements, l.places, l.comments, l.continued)
}

// fences are put at the places to be compared: as a comment, and as the text of
// one. The blanks keep it apart from what stands there.
var fences = [...]string{"/*wirefence.token='a=1'*/", " wirefence.token='a=1' "}

// compare returns how the two differ about a text, "" if they agree or the real
// scanner refuses the text. It tries at most places places.
func (l *lexing) compare(text string, escapes bool, places int) string {
	text, _, _ = strings.Cut(text, "\x00")
	tokens, err := Scan(text, escapes)
	if err != nil || strings.Contains(strings.ToLower(text), "wirefence") {
		return ""
	}
	if continued(text, tokens) {
		l.continued++
		return ""
	}
	l.texts++
	if trees, err := Parse(text, escapes); err == nil {
		if difference := l.compareBounds(text, escapes, tokens, trees); difference != "" {
			return difference
		}
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(text))
	random := rand.New(rand.NewPCG(hash.Sum64(), 0))
	for range places {
		at := random.IntN(len(text) + 1)
		if len(tokens) > 0 && random.IntN(2) == 0 { // at the seam of two tokens
			at = int(tokens[random.IntN(len(tokens))].Start)
		}
		if difference := l.compareAt(text, escapes, at, fences[random.IntN(len(fences))]); difference != "" {
			return difference
		}
	}
	return ""
}

// compareBounds compares where the statements begin and end: with their first and
// last token that is no comment.
func (l *lexing) compareBounds(text string, escapes bool, tokens []*pgquery.ScanToken, trees []*pgquery.RawStmt) string {
	got := l.scanner.Scan([]byte(text), sqltext.Options{EscapeStrings: escapes}).Statements
	if len(got) != len(trees) {
		return fmt.Sprintf("%d statements, by the grammar %d", len(got), len(trees))
	}
	for i, tree := range trees {
		from, to := int(tree.StmtLocation), len(text)
		if tree.StmtLen > 0 {
			to = from + int(tree.StmtLen)
		}
		start, end := -1, -1
		for _, token := range tokens {
			if int(token.Start) < from || int(token.End) > to || isComment(token) {
				continue
			}
			if start < 0 {
				start = int(token.Start)
			}
			end = int(token.End)
		}
		if int(got[i].Start) != start || int(got[i].End) != end {
			return fmt.Sprintf("statement %d is at %d to %d, by the grammar at %d to %d", i, got[i].Start, got[i].End, start, end)
		}
		l.statements++
	}
	return ""
}

// compareAt puts a fence at a place of the text. It must be found, or refused,
// where the real scanner sees a comment, and nowhere else.
func (l *lexing) compareAt(text string, escapes bool, at int, fence string) string {
	text = text[:at] + fence + text[at:]
	tokens, err := Scan(text, escapes)
	if err != nil || continued(text, tokens) {
		return ""
	}
	at += strings.Index(fence, "wirefence")
	want := false
	for _, token := range tokens {
		if int(token.Start) <= at && at < int(token.End) {
			want = isComment(token) // in a comment within it, too, where it is refused
		}
	}
	l.places++
	if want {
		l.comments++
	}
	r := l.scanner.Scan([]byte(text), sqltext.Options{EscapeStrings: escapes})
	if got := r.Fence != "" || r.FenceErr != nil; got != want {
		return fmt.Sprintf("with a fence at %d of %q: found %v, in a comment %v", at, text, got, want)
	}
	return ""
}

func isComment(token *pgquery.ScanToken) bool {
	return token.Token == pgquery.Token_C_COMMENT || token.Token == pgquery.Token_SQL_COMMENT
}

// continued reports whether a literal of the text goes on behind a line comment,
// 'a' --comment
// 'b'. Since pg_query hands comments out as tokens, it ends the literal there; a
// server goes on, as sqltext's own tests show on servers.
func continued(text string, tokens []*pgquery.ScanToken) bool {
	literal := false
	for i, token := range tokens {
		switch token.Token {
		case pgquery.Token_SCONST, pgquery.Token_USCONST, pgquery.Token_BCONST, pgquery.Token_XCONST:
			if literal && tokens[i-1].Token == pgquery.Token_SQL_COMMENT && text[token.Start] == '\'' {
				return true
			}
			literal = true
		case pgquery.Token_SQL_COMMENT:
		default:
			literal = false
		}
	}
	return false
}
