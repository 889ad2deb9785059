package proxy

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// Each look is at a second and a standing; the last one gives the verdict.
func TestTimeouts(t *testing.T) {
	type look struct {
		second int
		at     session.Standing
	}
	standing := func(where session.State) func(activity, transactions uint32) session.Standing {
		return func(activity, transactions uint32) session.Standing {
			return session.Standing{State: where, Activity: activity, Transactions: transactions}
		}
	}
	elsewhere, between := standing(session.StateOther), standing(session.StateIdle)
	waiting, running := standing(session.StateIdleInTransaction), standing(session.StateRunning)
	all := timeouts{idle: 10 * time.Second, inTransaction: 10 * time.Second, transaction: 20 * time.Second}
	for name, c := range map[string]struct {
		limits timeouts
		looks  []look
		want   *timeout
	}{
		"idle":                      {all, []look{{0, between(1, 1)}, {10, between(1, 1)}}, &idleTimeout},
		"not idle long enough":      {all, []look{{0, between(1, 1)}, {9, between(1, 1)}}, nil},
		"a query between two looks": {all, []look{{0, between(1, 1)}, {9, between(3, 2)}, {18, between(3, 2)}}, nil},
		"just seen":                 {all, []look{{100, between(1, 1)}}, nil},
		"login or stream":           {all, []look{{0, elsewhere(1, 1)}, {100, elsewhere(1, 1)}}, nil},
		"idle behind the login":     {all, []look{{0, elsewhere(0, 0)}, {9, between(1, 1)}, {18, between(1, 1)}}, nil},

		"the client is awaited":          {all, []look{{0, waiting(1, 1)}, {10, waiting(1, 1)}}, &inTransactionTimeout},
		"it says something now and then": {all, []look{{0, waiting(1, 1)}, {9, waiting(2, 1)}, {18, waiting(3, 1)}}, nil},
		"all the same it takes too long": {all, []look{{0, waiting(1, 1)}, {9, waiting(2, 1)}, {18, waiting(3, 1)}, {20, waiting(4, 1)}}, &transactionTimeout},
		"a long query":                   {all, []look{{0, running(1, 1)}, {20, running(1, 1)}}, &transactionTimeout},
		"a query is no waiting":          {all, []look{{0, running(1, 1)}, {19, running(1, 1)}}, nil},
		"another transaction":            {all, []look{{0, running(1, 1)}, {19, running(3, 2)}, {38, running(3, 2)}}, nil},
		"the transaction after a rest":   {all, []look{{0, running(1, 1)}, {9, between(2, 2)}, {18, running(3, 2)}, {37, running(3, 2)}}, nil},

		"only what is set": {timeouts{transaction: time.Second}, []look{{0, between(1, 1)}, {1000, between(1, 1)}}, nil},
		"none is set":      {timeouts{}, []look{{0, waiting(1, 1)}, {1000, waiting(1, 1)}}, nil},
	} {
		var w activityWatch
		var got *timeout
		for i, l := range c.looks {
			got = c.limits.exceeded(&w, l.at, time.Unix(int64(1000+l.second), 0))
			if got != nil && i < len(c.looks)-1 {
				t.Errorf("%s: %s already at %d", name, got.name, l.second)
			}
		}
		if got != c.want {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}

func TestSessionsAreLookedAtOftenEnough(t *testing.T) {
	for want, limits := range map[time.Duration]timeouts{
		0:                      {},
		10 * time.Millisecond:  {idle: time.Millisecond},
		125 * time.Millisecond: {transaction: time.Second, idle: time.Minute},
		time.Second:            {inTransaction: time.Hour},
	} {
		if got := limits.period(); got != want {
			t.Errorf("%+v: every %s, not %s", limits, got, want)
		}
	}
}

func TestLimits(t *testing.T) {
	var l limits
	o := &Options{MaxConnections: 3, MaxUserConnections: 2}
	in := map[string][]*pending{} // logged in, by user
	reason := func(user string) string {
		p := &pending{}
		if refused := l.countClient(o, p, user); refused != nil {
			return refused.reason
		}
		in[user] = append(in[user], p)
		return ""
	}
	for i, c := range []struct{ enters, leaves, want string }{
		{"a", "", ""}, {"a", "", ""}, {"a", "", "user_limit"}, {"b", "", ""}, {"c", "", "limit"}, {"a", "", "limit"},
		{"a", "a", ""}, {"b", "a", ""}, {"b", "a", "user_limit"}, {"c", "", ""},
	} {
		if c.leaves != "" {
			l.remove(in[c.leaves][0])
			l.remove(in[c.leaves][0]) // which changes nothing
			in[c.leaves] = in[c.leaves][1:]
		}
		if got := reason(c.enters); got != c.want {
			t.Errorf("%d: %s gets %q, not %q", i, c.enters, got, c.want)
		}
	}
}
