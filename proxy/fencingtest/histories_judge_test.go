package fencingtest

import (
	"crypto/md5"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// appended is a call that appends an item to the list, under a token.
type appended struct {
	by, item string
	token    int64
	fate     fate
}

// fate is what a call's client knows of its outcome.
type fate int

const (
	unknown fate = iota
	committed
	aborted
)

// seen is a read of the list: its length and its MD5.
type seen struct {
	by     string
	token  int64 // 0 on a standby
	length int
	sum    string
	after  string // the item that the same client appended last; "" if none
}

func sumOf(items []string) string {
	return fmt.Sprintf("%x", md5.Sum([]byte(strings.Join(items, ","))))
}

// judgeList compares what clients know with the list in the end, as Elle does with lists that are
// only appended to (Kingsbury and Alvaro, Elle, VLDB 2020): the list has the order of all commits,
// so every read must be a part of it from its beginning.
func judgeList(list []string, appends []appended, reads []seen) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	at, tokens, owners := map[string]int{}, make([]int64, len(list)), map[int64]string{0: ""}
	holds := func(token int64, by string) {
		if owners[token] == "" {
			owners[token] = by
		} else if owners[token] != by && token > 0 {
			fault("%d was granted to %s and to %s", token, owners[token], by)
		}
	}
	for _, a := range appends {
		holds(a.token, a.by)
		switch n := slices.Index(list, a.item); {
		case n < 0 && a.fate == committed:
			fault("%s is lost", a.item)
		case n >= 0 && a.fate == aborted:
			fault("%s is there, and its transaction was aborted", a.item)
		case n >= 0 && slices.Contains(list[n+1:], a.item):
			fault("%s is there twice", a.item)
		case n >= 0:
			at[a.item], tokens[n] = n, a.token
		}
	}
	for n := range list {
		if tokens[n] == 0 {
			fault("nobody has appended %s", list[n])
		} else if n > 0 && tokens[n] < tokens[n-1] {
			fault("%s comes behind %s", list[n], list[n-1])
		}
	}
	last := map[string]int{} // the length that a client saw last on a standby
	for _, r := range reads {
		holds(r.token, r.by)
		switch n, own := at[r.after]; {
		case r.length > len(list) || r.sum != sumOf(list[:r.length]):
			fault("%s has read %d items that are no beginning of the list", r.by, r.length)
		case r.token == 0 && r.length < last[r.by]:
			fault("%s has read %d items of a standby, and before that %d", r.by, r.length, last[r.by])
		case r.token == 0:
			last[r.by] = r.length
		case own && n >= r.length:
			fault("%s does not see its own %s", r.by, r.after)
		case slices.ContainsFunc(tokens[:r.length], func(token int64) bool { return token > r.token }):
			fault("%s under %d has read what a later holder wrote", r.by, r.token)
		case slices.ContainsFunc(tokens[r.length:], func(token int64) bool { return token < r.token }):
			fault("%s under %d has not read all that was written before its grant", r.by, r.token)
		}
	}
	return faults
}

// A history without a fault, and one change of it for each fault.
func TestListsAreJudged(t *testing.T) {
	list := []string{"a1", "a2", "b1"}
	type history struct {
		list    []string
		appends []appended
		reads   []seen
	}
	good := func() history {
		return history{slices.Clone(list),
			[]appended{{"a", "a1", 1, committed}, {"a", "a2", 1, unknown}, {"a", "a3", 1, unknown}, {"b", "b1", 2, committed}, {"a", "a4", 1, aborted}},
			[]seen{{"a", 1, 1, sumOf(list[:1]), "a1"}, {"b", 2, 2, sumOf(list[:2]), ""}, {"r", 0, 1, sumOf(list[:1]), ""}, {"r", 0, 3, sumOf(list), ""}}}
	}
	if h := good(); judgeList(h.list, h.appends, h.reads) != nil {
		t.Errorf("the good one: %q", judgeList(h.list, h.appends, h.reads))
	}
	for want, change := range map[string]func(*history){
		"is lost":                   func(h *history) { h.appends[2].fate = committed },
		"was aborted":               func(h *history) { h.appends[1].fate = aborted },
		"there twice":               func(h *history) { h.list = append(h.list, "b1") },
		"nobody":                    func(h *history) { h.list = append(h.list, "x") },
		"comes behind":              func(h *history) { h.appends[0].token = 3 },
		"no beginning of the list":  func(h *history) { h.reads[2].sum = sumOf(list[1:2]) },
		"and before that":           func(h *history) { h.reads[2], h.reads[3] = h.reads[3], h.reads[2] },
		"does not see its own":      func(h *history) { h.reads[0].after = "a2" },
		"granted to a and to b":     func(h *history) { h.reads[1].token = 1 },
		"what a later holder wrote": func(h *history) { h.reads[0] = seen{"a", 1, 3, sumOf(list), ""} },
		"has not read all":          func(h *history) { h.reads[1] = seen{"b", 2, 1, sumOf(list[:1]), ""} },
	} {
		h := good()
		change(&h)
		if faults := judgeList(h.list, h.appends, h.reads); !slices.ContainsFunc(faults, func(fault string) bool { return strings.Contains(fault, want) }) {
			t.Errorf("want a fault that %q: %q", want, faults)
		}
	}
}
