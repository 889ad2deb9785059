package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWhatTheWitnessSays(t *testing.T) {
	w := &Witness{Servers: []string{"one:5432", "two:5432"}, Bound: 3 * time.Second}
	away := errors.New("it is away")
	for _, c := range []struct {
		leads []bool
		errs  []error
		grade Grade
		says  string
	}{
		{[]bool{true, false}, []error{nil, nil}, OK, "confirms one:5432 as the leader; a confirmation counts for 3s"},
		{[]bool{false, true}, []error{away, nil}, Note, "can't be asked about one:5432: it is away"},
		{[]bool{false, false}, []error{nil, nil}, Problem, "confirms none of one:5432, two:5432"},
		{[]bool{false, false}, []error{away, away}, Problem, "it is away"},
		{[]bool{true, true}, []error{nil, nil}, Problem, "confirms 2 servers"},
	} {
		worst, text := OK, ""
		for _, f := range judgeWitness(w, c.leads, c.errs) {
			worst = max(worst, f.Grade)
			text += f.Says + "\n"
		}
		if worst != c.grade || !strings.Contains(text, c.says) {
			t.Errorf("%v, %v: %v: %s", c.leads, c.errs, worst, text)
		}
	}
}
