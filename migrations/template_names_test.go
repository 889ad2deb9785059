package migrations_test

import (
	"strings"
	"testing"
)

// Two different rows never get the same name, whatever their columns contain.
func TestNoTwoRowsMakeOneName(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		for _, template := range []string{"t:{a}:{b}", "{a}::{b}", "{a}%{b}", "{a}%3A{b}", "{a}é{b}", "{a}-x-{b}/end", "{a}_{b}_{a}"} {
			mustExec(t, admin, `CREATE TABLE pairs (a text NOT NULL, b text NOT NULL);
				INSERT INTO pairs SELECT a, b FROM unnest('{x,"",:,x:y,y:z,%,%3A,%25,3A,é,xé,-,-x-,/end,_,x_,::,"::x"}'::text[]) AS a, unnest('{x,"",:,x:y,y:z,%,%3A,%25,3A,é,xé,-,-x-,/end,_,x_,::,"::x"}'::text[]) AS b`)
			expression := value[string](t, admin, "SELECT wirefence.name_expression($1, 'p')", template)
			if n := value[int](t, admin, "SELECT count(*) - count(DISTINCT "+expression+") FROM pairs AS p"); n != 0 {
				t.Errorf("%s: %d rows share a name", template, n)
			}
			if differ := value[bool](t, admin, "SELECT bool_or(("+strings.ReplaceAll(value[string](t, admin, "SELECT wirefence.row_query($1)", template), "$1", "p")+") IS DISTINCT FROM "+expression+") FROM pairs AS p"); differ {
				t.Errorf("%s: the trigger's function makes other names than its condition", template)
			}
			mustExec(t, admin, "SELECT wirefence.protect('pairs', $1)", template)
			wantCode(t, exec(admin, "INSERT INTO pairs VALUES ('x:y', 'z')"), "WF002")
			mustExec(t, admin, "DROP TABLE pairs")
		}
		mustExec(t, admin, "CREATE TABLE pairs (a text NOT NULL, b text NOT NULL)")
		err := exec(admin, "SELECT wirefence.protect('pairs', 't:{a}{b}')")
		wantCode(t, err, "22023")
		// The token of one row writes no other.
		mustExec(t, admin, "SELECT wirefence.protect('pairs', 't:{a}:{b}')")
		app := db.app(t)
		mustExec(t, admin, "GRANT ALL ON pairs TO app")
		mustExec(t, app, "SET wirefence.token = 't:x%253Ay:z=1'; INSERT INTO pairs VALUES ('x:y', 'z')")
		wantCode(t, exec(app, "INSERT INTO pairs VALUES ('x', 'y:z')"), "WF002")
		mustExec(t, app, "SET wirefence.token = 't:x:y:z=1'; INSERT INTO pairs VALUES ('x', 'y:z')")
		wantCode(t, exec(app, "INSERT INTO pairs VALUES ('x:y', 'z')"), "WF002")
		mustExec(t, app, "SET wirefence.token = 't:plain:value=1'; INSERT INTO pairs VALUES ('plain', 'value')")
	})
}
