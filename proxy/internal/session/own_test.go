package session

import (
	"slices"
	"strings"
)

// What the model does at SQL of the proxy's own.

// internal returns what the model does at such SQL; nil for any other.
func (b *backend) internal(sql string) func(parameters []*string) result {
	switch sql {
	case trimmed(loginSQL):
		return b.answering(func() []string {
			columns := []string{b.token.now(), "wirefence.check", "1885955118", marker, "f"}
			if !b.policy.schema {
				columns = []string{b.token.now()}
			}
			return columns
		})
	case askVariableSQL:
		return b.answering(func() []string { return []string{b.token.now()} })
	case "SELECT " + interferesSQL:
		return b.answering(func() []string { return []string{map[bool]string{true: "t", false: "f"}[b.policy.setters]} })
	case strings.TrimSuffix(readCommittedSQL, ";"):
		return func([]*string) result { b.tx.readOnly = false; return result{tag: "SET"} }
	case giveBackSQL:
		return func([]*string) result {
			if b.policy.failing && b.dice.n(4) == 1 {
				return result{code: queryCanceled}
			}
			b.unlockAll()
			return rowOf("")
		}
	case "SELECT " + readOnlySQL, missingHead + readOnlySQL + " END", missingHead + "NULL END":
		return func([]*string) result { return b.missing(sql) }
	}
	if call, ok := strings.CutPrefix(sql, "SELECT wirefence.hold("); ok {
		argument, has, _ := strings.Cut(call, ", NULL, ")
		if has, ok = strings.CutSuffix(has, "), "+carriedSQL); ok {
			return func([]*string) result { return b.holding(argument, has) }
		}
	}
	if call, ok := strings.CutPrefix(sql, "SELECT wirefence.hold_or_check("); ok {
		argument, rest, _ := strings.Cut(call, ", NULL, ")
		has, flag, ok := strings.Cut(rest, ", ")
		if ok && (flag == "true)" || flag == "false)") {
			return func(parameters []*string) result {
				return b.holdingOrChecking(argument, has, flag == "true)", parameters)
			}
		}
	}
	if argument, ok := callOf(sql, "SELECT wirefence.unhold("); ok {
		return func([]*string) result {
			for pair := range strings.SplitSeq(b.argument(argument, nil), ",") {
				delete(b.held, pair)
			}
			return rowOf("")
		}
	}
	if argument, ok := callOf(sql, "SELECT wirefence.before_hold("); ok {
		return func([]*string) result { return b.beforeHold(b.argument(argument, nil)) }
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

// callOf cuts the fence out of a call that has the default resource behind it.
func callOf(sql, head string) (argument string, ok bool) {
	call, ok := strings.CutPrefix(sql, head)
	argument, ok2 := strings.CutSuffix(call, ", NULL)")
	return argument, ok && ok2
}

// beforeHold is wirefence.before_hold.
func (b *backend) beforeHold(fence string) result {
	switch {
	case !b.policy.schema:
		return result{code: "3F000"}
	case fence == "":
		return rowOf(carriesNone)
	}
	if code := b.check(fence); code != "" {
		return result{code: code}
	}
	return rowOf("checked")
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
	b.tx.queried = true
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
	b.tx.queried = true
	switch {
	case fence == "" && !required:
		return rowOf(null)
	case fence == "":
		b.tx.readOnly = b.tx.readOnly || !shadow
		return rowOf(carriesNone)
	case shadow:
		return rowOf("WF001: " + marker)
	}
	if code := b.check(fence); code != "" {
		return result{code: code}
	}
	return rowOf(null)
}

// holding is wirefence.hold, with the column behind it.
func (b *backend) holding(argument, has string) result {
	fence := b.argument(argument, nil)
	b.letGo(fence, strings.Trim(has, "'"))
	switch {
	case !b.policy.schema:
		return result{code: "3F000"}
	case b.policy.snapshots && !b.multi:
		return result{code: "WF006"}
	}
	held, code := b.hold(fence)
	if code != "" {
		return result{code: code}
	}
	return rowOf(map[bool]string{true: "t", false: "f"}[held], b.token.now())
}

// letGo gives back what the session is said to hold.
func (b *backend) letGo(fence, has string) {
	switch has {
	case "NULL":
		b.unlockAll()
	case "same":
		for pair := range strings.SplitSeq(fence, ",") {
			delete(b.held, pair)
		}
	}
}

// holdingOrChecking is wirefence.hold_or_check.
func (b *backend) holdingOrChecking(argument, has string, required bool, parameters []*string) result {
	if n := len(parameters); n > 0 {
		has = "NULL"
		if parameters[n-1] != nil {
			has = *parameters[n-1]
		}
		parameters = parameters[:n-1]
	}
	fence := b.argument(argument, parameters)
	if !b.policy.schema {
		return result{code: "3F000"}
	}
	if b.tx.block != 0 || len(b.tx.wrote) > 0 {
		b.violates("a hold is asked for in a transaction that has begun")
	}
	b.tx.queried = true
	b.letGo(fence, strings.Trim(has, "'"))
	if b.policy.snapshots {
		if checked := b.checking(fence, required, false); checked.code != "" || checked.rows[0][0] != null {
			return checked
		}
		return rowOf("apart")
	}
	held, code := b.hold(fence)
	switch {
	case code != "":
		return result{code: code}
	case held:
		return rowOf("held")
	}
	return b.checking(fence, required, false)
}
