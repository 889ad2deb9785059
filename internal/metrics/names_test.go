package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

func TestNamesAreBounded(t *testing.T) {
	n := NewNames(3, "first", "")
	for _, c := range []struct{ name, label string }{
		{"orders", "orders"}, {Other, Other}, {"", Other}, {"a\xff", Other}, {strings.Repeat("x", 256), Other},
		{"Größe", "Größe"}, {"late", Other}, {"orders", "orders"}, {"first", "first"},
	} {
		if got := n.Label(fence.Resource(c.name)); got != c.label {
			t.Errorf("%q is labelled %q, not %q", c.name, got, c.label)
		}
	}
	if met, room := n.all(); !slices.Equal(met, []fence.Resource{"Größe", "first", "orders"}) || room != 0 {
		t.Errorf("met are %q, room is for %d", met, room)
	}
	none := NewNames(0)
	for i := range 5 {
		if got := none.Label(fence.Resource(fmt.Sprint(i))); got != Other {
			t.Errorf("without room %d is labelled %q", i, got)
		}
	}
}
