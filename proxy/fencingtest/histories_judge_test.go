package fencingtest

import (
	"crypto/md5"
	"fmt"
	"slices"
	"strings"
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
