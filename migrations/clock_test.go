package migrations_test

import (
	"fmt"
	"testing"
)

// The clock went back between two promotions, so tokens of the first are from the future.
// A known token is exceeded; a lost one is never accepted.
func TestAClockThatGoesBackBetweenPromotions(t *testing.T) {
	onOwn(t, func(t *testing.T, primary database) {
		ahead := look[int64](t, primary, "SELECT (extract(epoch FROM clock_timestamp() + interval '2 h') * 1048576)::bigint")
		primary.seal(t, "known", ahead)
		primary.seal(t, "lost", 33)
		standby := primary.standby(t)
		standby.fallBehind(t, primary)
		primary.seal(t, "lost", ahead)
		failOver(t, primary, standby)
		lost := fmt.Sprintf("lost=%d", ahead)
		wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", lost), "WF001")
		if token := granted(t, standby, "known"); token <= ahead {
			t.Errorf("behind %d comes %d", ahead, token)
		}
		token := granted(t, standby, "lost")
		if token < firstAfterPromotion || token >= ahead {
			t.Errorf("the next token is %d, with the clock behind %d", token, ahead)
		}
		wantCurrent(t, standby, fmt.Sprintf("lost=%d", token))
		wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", lost), "WF003")
		wantCode(t, exec(standby.app(t), holdSQL, lost), "WF003")
	})
}
