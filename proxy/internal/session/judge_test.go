package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/model"
)

// What the model judges. Token 1 is current, 3 is stale, and 2 becomes so by a
// takeover, for which no lock of its resource may be in the way. A pair of a fence is
// covered while the lock of a check or of a hold that has passed it is there, so what
// is covered isn't stale.

// takeover lets one through, perhaps.
func (b *backend) takeover() {
	for _, r := range []string{"a", "b", "o", "lease"} {
		if b.primary == nil && !b.superseded[r] && !b.locked(r) && b.dice.n(16) == 15 {
			b.superseded[r] = true
			b.log = append(b.log, took{'-', "a takeover of " + r})
		}
	}
}

func (b *backend) locked(resource string) bool {
	if b.lingering[resource] {
		return true
	}
	return len(b.covering(resource)) > 0
}

func (b *backend) stale(pair string) bool {
	resource, token, _ := strings.Cut(pair, "=")
	if b.primary != nil {
		return b.primary.stale(resource, token)
	}
	return token == "3" || token == "2" && b.superseded[resource]
}

func (b *backend) covered(pair string) bool { return b.tx.checked[pair] || b.holds(pair) }

// holds reports whether any proxy holds a pair.
func (b *backend) holds(pair string) bool {
	for m := range b.held {
		if m.pair == pair {
			return true
		}
	}
	return false
}

// covering returns the pairs of a resource that are covered.
func (b *backend) covering(resource string) (pairs []string) {
	for pair := range b.tx.checked {
		pairs = append(pairs, pair)
	}
	for m := range b.held {
		pairs = append(pairs, m.pair)
	}
	return slices.DeleteFunc(pairs, func(pair string) bool { return !strings.HasPrefix(pair, resource+"=") })
}

func (b *backend) violates(format string, args ...any) {
	if b.policy.enforced && b.violated == "" {
		b.violated = fmt.Sprintf(format, args...)
	}
}

// judge judges a statement, be it a read or a write: its fence, or the session
// variable's, must be covered.
func (b *backend) judge(what string, carried []string) {
	for _, pair := range b.effective(carried) {
		b.step(model.Ran, pair)
		if !b.covered(pair) {
			b.violates("%s carries %s, which is not covered", what, pair)
		}
	}
}

// write judges a write, and returns the SQLSTATE of its failure.
func (b *backend) write(what string, carried []string) (code string) {
	b.looks()
	if b.tx.readOnly {
		return "25006"
	}
	b.judge(what, carried)
	carried = b.effective(carried)
	b.tx.wrote = append(b.tx.wrote, carried...)
	if len(carried) > 0 {
		return ""
	}
	if stamps := b.covering("lease"); b.policy.leased && len(stamps) > 0 {
		b.tx.stamped = true
		return ""
	}
	if b.policy.required || b.policy.leased {
		b.violates("%s without a fence, which is required", what)
	}
	return ""
}

// judgeLocks judges what LOCK has taken, once the client may pause or its transaction ends: a stale
// session that has it would stop its successor.
func (b *backend) judgeLocks() {
	for _, pair := range b.tx.locked {
		if b.tx.block != 'E' && !b.covered(pair) {
			b.violates("a LOCK carries %s, which is not covered behind it", pair)
		}
	}
}

// judgeCommit judges what a transaction has written: the locks must be there still.
func (b *backend) judgeCommit() {
	b.judgeLocks()
	for _, pair := range slices.Compact(slices.Sorted(slices.Values(b.tx.wrote))) {
		b.step(model.Commits, pair)
		switch {
		case b.stale(pair):
			b.violates("a commit of what was written by %s, which is stale", pair)
		case !b.covered(pair):
			b.violates("a commit of what was written by %s, whose lock is gone", pair)
		}
	}
	if b.tx.stamped && len(b.covering("lease")) == 0 {
		b.violates("a commit of what was written under the lease, whose lock is gone")
	}
}

// effective is what a statement carries: its comments' fences, or else the
// session variable's.
func (b *backend) effective(carried []string) []string {
	if len(carried) == 0 && b.token.now() != "" {
		return strings.Split(b.token.now(), ",")
	}
	return carried
}

// check is wirefence.check without its variants. It returns the SQLSTATE of a refusal.
func (b *backend) check(fence string) (code string) {
	pairs := strings.Split(fence, ",")
	switch {
	case b.outdated(pairs) && b.tx.readOnly && b.primary.broken.oldSnapshot:
	case b.outdated(pairs):
		return serializationFailure
	case slices.ContainsFunc(pairs, b.stale):
		return "WF001"
	case b.mustWait(pairs):
		return waiting
	}
	for _, pair := range pairs {
		if !b.tx.checked[pair] {
			b.step(model.Checked, pair)
		}
		b.tx.checked[pair] = true
	}
	return ""
}

// hold takes every pair of a fence for a proxy, or none.
func (b *backend) hold(number, fence string) (code string) {
	b.takeover() // for which it may have to wait
	pairs := strings.Split(fence, ",")
	switch {
	case slices.ContainsFunc(pairs, b.stale):
		return "WF001"
	case b.mustWait(pairs):
		return waiting
	case b.policy.failing && b.dice.n(4) == 1: // lock_timeout, behind the first lock
		resource, _, _ := strings.Cut(pairs[0], "=")
		b.lingering[resource] = true
		return lockTimeout
	}
	for _, pair := range pairs {
		if !b.holds(pair) {
			b.step(model.Held, pair)
		}
		b.held[mark{number, pair}] = true
	}
	return ""
}

// unlockAll releases the locks of all holds.
func (b *backend) unlockAll() {
	b.release(func(mark) bool { return true })
	clear(b.lingering)
}

// release releases the locks of those marks for which which is true.
func (b *backend) release(which func(mark) bool) {
	for m := range b.held {
		if which(m) {
			if delete(b.held, m); !b.holds(m.pair) {
				b.step(model.Unheld, m.pair)
			}
		}
	}
}

// restore sets what a rollback brings back. It may release locks of checks.
func (b *backend) restore(s state) {
	for pair := range b.tx.checked {
		if !s.checked[pair] {
			b.step(model.Undone, pair)
		}
	}
	b.tx.state = s
}
