package doctor

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

func TestAdoptedLocks(t *testing.T) {
	lock := AdoptedLock{Name: "kubernetes:shop/orders", Resource: "orders"}
	for _, c := range []struct {
		holder      string
		token, last fence.Token
		grade       Grade
		says        string
	}{
		{"", 7, 3, OK, "nobody has kubernetes:shop/orders"},
		{"web-1_a", 7, 7, OK, `sealed for "web-1_a"`},
		{"web-1_a", 7, 9, OK, `sealed for "web-1_a"`},
		{"web-1_a", 7, 6, Warning, `granted to "web-1_a", and no sidecar has sealed that: the last token of orders is 6`},
	} {
		found := judgeAdopted(lock, c.holder, c.token, c.last)
		if len(found) != 1 || found[0].Grade != c.grade || !strings.Contains(found[0].Says, c.says) {
			t.Errorf("%+v: %+v", c, found)
		}
	}
}
