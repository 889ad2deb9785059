package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/migrations"
)

// A migration is one transaction: whenever its connection or its program ends, the database is
// as it was before.
func TestAMigrationThatEndsLeavesNothing(t *testing.T) {
	const objects = `SELECT count(*) FROM (SELECT FROM pg_namespace WHERE nspname = 'wirefence'
		UNION ALL SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('wirefence')
		UNION ALL SELECT FROM pg_class WHERE relnamespace = to_regnamespace('wirefence')) AS o`
	onEach(t, func(t *testing.T, db database) {
		for _, from := range []int{0, 8} {
			empty := create(t, db.Postgres, "")
			watching := empty.admin(t)
			if from > 0 {
				if err := (migrations.Options{}).To(from).Apply(t.Context(), empty.admin(t), nil); err != nil {
					t.Fatal(err)
				}
			}
			before := value[int](t, watching, objects)
			for _, at := range []string{"CREATE SCHEMA", "apply 001", "apply 002", "apply 005", "apply 009", "apply 014", "the schema is"} {
				if from > 0 && at < "apply 009" {
					continue
				}
				for _, what := range []string{"ended", "cancelled"} {
					conn := empty.admin(t)
					reached := false
					ctx, cancel := context.WithCancel(t.Context())
					err := migrations.Apply(ctx, conn, func(line string) {
						if !strings.HasPrefix(line, at) {
							return
						}
						reached = true
						if what == "cancelled" {
							cancel()
							return
						}
						mustExec(t, watching, "SELECT pg_terminate_backend($1), pg_sleep(0.01)", conn.PgConn().PID())
					})
					cancel()
					if err == nil || !reached {
						t.Fatalf("from %d, %s at %q: %v, %v", from, what, at, err, reached)
					}
					if n := value[int](t, watching, objects); n != before {
						t.Errorf("from %d, %s at %q: %d objects, before it %d", from, what, at, n, before)
					}
					var version *migrations.VersionError
					if err := migrations.Verify(t.Context(), watching); !errors.As(err, &version) || version.Have != from {
						t.Errorf("from %d, %s at %q: %v", from, what, at, err)
					}
				}
			}
			apply(t, empty.admin(t))
			if err := migrations.Verify(t.Context(), watching); err != nil {
				t.Error(err)
			}
		}
	})
}
