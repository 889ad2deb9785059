package session

import (
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
)

// What the model does at SQL of the proxy's own.

func hexadecimal(name string) string { return hex.EncodeToString([]byte(name)) }

// internal returns what the model does at such SQL; nil for any other.
func (b *backend) internal(sql string) func(parameters []*string) result {
	switch sql {
	case trimmed(loginSQL):
		return b.answering(func() []string {
			columns := []string{b.token.now(), "usable", "1885955118", hexadecimal(marker)}
			if !b.policy.schema {
				columns = []string{b.token.now()}
			}
			return columns
		})
	case trimmed(declaredSQL):
		return b.answering(func() []string { return []string{"f"} })
	case askVariableSQL, askCarriedSQL:
		return func([]*string) result { return rowOf(b.token.now()) } // it can't fail
	case trimmed(UnlocksSQL):
		return b.answering(func() []string { return []string{map[bool]string{true: "t", false: "f"}[b.policy.unlockers]} })
	case holdSettings[0]:
		return func([]*string) result {
			if b.tx.queried {
				return result{code: "25001"}
			}
			b.tx.current = true
			return result{tag: "SET"}
		}
	case holdSettings[1]:
		return func([]*string) result { b.tx.readOnly = false; return result{tag: "SET"} }
	case "SELECT " + readOnlySQL, missingHead + readOnlySQL + " END", missingHead + "NULL END":
		return func([]*string) result { return b.missing(sql) }
	}
	if strings.HasPrefix(sql, "PREPARE TRANSACTION 'refused by wirefence") {
		return func([]*string) result {
			if b.tx.block != 'T' {
				b.violates("a PREPARE TRANSACTION that is to fail, outside of a block")
			}
			b.rollback()
			return result{code: "22023"}
		}
	}
	if m := ownHold.FindStringSubmatch(sql); m != nil {
		return func(parameters []*string) result {
			return b.proxyHold(strings.Trim(m[1], "'"), m[2], m[3], m[4] == "true", m[5], parameters)
		}
	}
	if m := ownUnhold.FindStringSubmatch(sql); m != nil {
		return func([]*string) result { return b.proxyUnhold(m[1], m[2]) }
	}
	call, ok := strings.CutPrefix(sql, "SELECT wirefence.check(")
	if !ok {
		return nil
	}
	argument, flags, _ := strings.Cut(call, ", NULL, ")
	required, shadow, _ := strings.Cut(strings.TrimSuffix(flags, ")"), ", ")
	if !slices.Contains([]string{"true, true)", "true, false)", "false, true)", "false, false)"}, flags) {
		return nil
	}
	return func(parameters []*string) result {
		return b.checking(b.argument(argument, parameters), required == "true", shadow == "true")
	}
}

// ownHold and ownUnhold are the calls that take a hold and give it back.
var (
	ownHold   = regexp.MustCompile(`^SELECT wirefence\.proxy_hold\(('-?\d+'|\$\d), (.+), NULL, (NULL|'\w+'|\$\d), (true|false), '(\w+)'\)$`)
	ownUnhold = regexp.MustCompile(`^SELECT wirefence\.proxy_unhold\('(-?\d+)', (NULL|'\{[0-9,]+\}')\)$`)
)

// lockKeys are the keys of the resources' locks.
var lockKeys = map[string]string{"a": "1", "b": "2", "o": "3", "lease": "4"}

func keyOf(pair string) string {
	resource, _, _ := strings.Cut(pair, "=")
	return lockKeys[resource]
}

func rowOf(columns ...string) result {
	return result{tag: "SELECT 1", columns: true, rows: [][]string{columns}}
}

func (b *backend) answering(with func() []string) func([]*string) result {
	return func([]*string) result {
		if b.policy.failing && b.dice.n(4) == 1 {
			return result{code: "42501"}
		}
		return rowOf(with()...)
	}
}

// argument is the value of the fence that a call names.
func (b *backend) argument(sql string, parameters []*string) string {
	carried := b.token.now()
	stamp, stamps := strings.CutPrefix(sql, stampedHead)
	switch {
	case strings.HasPrefix(sql, "'"):
		return strings.Trim(sql, "'")
	case len(parameters) > 0 && parameters[0] != nil:
		return *parameters[0]
	case len(parameters) > 1 && parameters[1] != nil && carried == "":
		return *parameters[1]
	case stamps && carried == "":
		return strings.Trim(strings.TrimSuffix(stamp, stampedTail), "'")
	}
	return carried
}

// missing is a check where the schema isn't there.
func (b *backend) missing(sql string) result {
	b.looks()
	if b.token.now() != "" && strings.HasPrefix(sql, missingHead) {
		return result{code: missingSchema}
	}
	if !strings.Contains(sql, readOnlySQL) {
		return rowOf(null)
	}
	b.tx.readOnly = true
	return rowOf("on")
}

// checking is wirefence.check.
func (b *backend) checking(fence string, required, shadow bool) result {
	if !b.policy.schema {
		return result{code: "3F000"}
	}
	b.looks()
	switch {
	case fence == "" && (!required || b.tx.readOnly):
		return rowOf("none")
	case fence == "":
		b.tx.readOnly = b.tx.readOnly || !shadow
		return rowOf("unfenced")
	case shadow:
		return rowOf("WF001: " + marker)
	}
	if code := b.check(fence); code != "" {
		return result{code: code}
	}
	return rowOf(null)
}

// proxyHold is wirefence.proxy_hold.
func (b *backend) proxyHold(number, argument, has string, required bool, manner string, parameters []*string) result {
	if n := len(parameters); n > 0 {
		has = "NULL"
		if parameters[n-1] != nil {
			has = "'" + *parameters[n-1] + "'"
		}
		number, parameters = *parameters[n-2], parameters[:n-2]
	}
	fence := b.argument(argument, parameters)
	if !b.policy.schema {
		return result{code: "3F000"}
	}
	if b.tx.block != 0 || len(b.tx.wrote) > 0 {
		b.violates("a hold is asked for in a transaction that has begun")
	}
	b.looks()
	apart := (b.policy.snapshots || b.tx.frozen) && !b.tx.current
	switch has {
	case "NULL":
		b.release(func(m mark) bool { return m.by == number })
		clear(b.lingering)
	case "'same'":
		b.release(func(m mark) bool { return m.by == number && strings.Contains(","+fence+",", ","+m.pair+",") })
	}
	if fence == "" {
		b.tx.readOnly = b.tx.readOnly || required
		return rowOf("none")
	}
	word := ""
	switch {
	case manner != grouped && manner != observing && apart:
		return result{code: "WF006"}
	case apart:
		word = "apart"
	case manner == observing, manner != needing && b.isWanted(fence):
		word = "checked"
	case strings.Contains(fence, "o="): // reuse = once
		word = "once"
	}
	if word == "" {
		if code := b.hold(number, fence); code != "" {
			return result{code: code}
		}
		var keys []string
		for pair := range strings.SplitSeq(fence, ",") {
			keys = append(keys, keyOf(pair))
		}
		return rowOf("held " + b.identity() + " " + strings.Join(keys, ","))
	}
	if manner == grouped {
		if code := b.check(fence); code != "" {
			return result{code: code}
		}
	} else if slices.ContainsFunc(strings.Split(fence, ","), b.stale) {
		return result{code: "WF001"}
	}
	return rowOf(word)
}

// proxyUnhold is wirefence.proxy_unhold.
func (b *backend) proxyUnhold(number, keys string) result {
	switch {
	case b.policy.failing && b.dice.n(4) == 1:
		return result{code: queryCanceled}
	case keys == "NULL":
		b.release(func(m mark) bool { return m.by == number })
		clear(b.lingering)
	default:
		keys = "," + strings.Trim(keys, "'{}") + ","
		b.release(func(m mark) bool { return m.by == number && strings.Contains(keys, ","+keyOf(m.pair)+",") })
	}
	return rowOf("")
}
