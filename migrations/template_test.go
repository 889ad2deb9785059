package migrations_test

import (
	"strings"
	"testing"
)

// Each type that a template may name has one text for each value, whichever way the
// name of a row is made: by the trigger's condition, or for the refusal.
func TestTypesOfATemplatesColumns(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, `CREATE TYPE mood AS ENUM ('sad', 'so-so'); CREATE DOMAIN code AS varchar(8) CHECK (VALUE <> ''); CREATE DOMAIN item AS code NOT NULL;
			CREATE TABLE typed (a smallint, b bigint, c uuid, d mood, e item, f name, g oid, h boolean, i text GENERATED ALWAYS AS ('i' || a) STORED);
			SELECT wirefence.protect('typed', '{a}:{b}:{c}:{d}:{e}:{f}:{g}:{h}:{i}')`)
		const row = "INSERT INTO typed VALUES (-5, 9223372036854775807, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'so-so', 'E', 'F', 4294967295, 'yes')"
		const name = "-5:9223372036854775807:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11:so-so:E:F:4294967295:true:i-5"
		err := exec(admin, row)
		wantCode(t, err, "WF002")
		if err != nil && !strings.Contains(err.Error(), `"`+name+`"`) {
			t.Errorf("the row is taken for another: %v", err)
		}
		mustExec(t, admin, "SET datestyle = 'German'; SET extra_float_digits = 0; SET bytea_output = 'escape'; SET wirefence.token = '"+name+"=1'; "+row)
		mustExec(t, admin, "UPDATE typed SET h = h; DELETE FROM typed")
	})
}
