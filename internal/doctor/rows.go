package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// rowChecks examine the classes of rows that judge their own claims.
var rowChecks = []Check{
	{"rows.classes", []string{schemaVersion}, checkRows},
}

func checkRows(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := read(ctx, in, func(tx pgx.Tx) ([]fence.RowClass, error) { return fence.RowClasses(ctx, tx) })
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		declare := fmt.Sprintf("wirefence rows declare %s --table %s --key %s --claim %s --while %s", c.Class, quoted(c.Table), quoted(strings.Join(c.Key, ",")), quoted(c.Claim), quoted(c.While))
		switch {
		case strings.HasPrefix(c.Fault, "the table has gone"):
			found = append(found, faulty(c, declare+", if another took its place", "wirefence rows drop "+c.Class+", if not"))
		case c.Fault != "" && c.Mode == fence.ModeShadow:
			found = append(found, faulty(c, declare+" --shadow, with the present names of its columns"))
		case c.Fault != "":
			found = append(found, faulty(c, declare+", with the present names of its columns"))
		case c.Mode == fence.ModeShadow:
			found = append(found, Finding{
				Grade: Warning, Says: c.Class + ", of " + c.Table + ": it is in shadow mode",
				Means: "Refusals are recorded, and nothing is refused.", Remedy: []string{declare + ", when the history records no more statements that should pass"},
			})
		}
	}
	return finding.OrFine(found, "classes of rows: %d, and all can judge", len(all)), nil
}

func faulty(c fence.RowClass, remedy ...string) Finding {
	return Finding{
		Grade: Warning, Says: c.Class + ", of " + c.Table + ": " + c.Fault,
		Means: "All fences of the class are refused, and writes to tables that are guarded with it.", Remedy: remedy,
	}
}
