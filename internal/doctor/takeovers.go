package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// sealTime is how long the lock client lets a seal take: until its lease ends here, which is
// a fifth of the TTL earlier than in the store (lockclient.Options.Margin).
func sealTime(ttl time.Duration) time.Duration { return ttl - ttl/5 }

// checkTakeovers compares each resource's preempt_after with the time that a grant has to be
// sealed. A seal that is cut short ends no transaction, and the next one waits anew.
func checkTakeovers(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	within, more := sealTime(in.TTL), 0
	for _, r := range all {
		// resources.policies has those that wait much longer. Tokens of other lock services
		// have leases of another TTL, or none.
		foreign := r.Advance == fence.AdvanceOnUse && r.Holder == ""
		if r.PreemptAfter == nil || *r.PreemptAfter > longPreempt || *r.PreemptAfter < within || foreign {
			continue
		}
		if len(found) == mostNamed {
			more++
			continue
		}
		found = append(found, Finding{Grade: Warning,
			Says:  fmt.Sprintf("%s: preempt_after is %v, and with WIREFENCE_TTL=%v a grant must be sealed within %v", r.Resource, *r.PreemptAfter, in.TTL, within),
			Means: fmt.Sprintf("A takeover behind a stuck transaction fails with \"no answer within %v\" before it may end the transaction, again and again.", within),
			Remedy: []string{
				fmt.Sprintf("WIREFENCE_TTL=%v or longer, for all that take its lease", enoughTTL(*r.PreemptAfter)),
				fmt.Sprintf("or wirefence resource set %s --preempt-after %v --reason 'takeovers must end before the lease does'", quoted(string(r.Resource)), in.TTL/2),
			}})
	}
	if more > 0 {
		found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("the same is true of %d more resources", more),
			Means: "Their takeovers fail in the same way.", Remedy: []string{"wirefence resource list"}})
	}
	return orFine(found, "with WIREFENCE_TTL=%v, a grant has %v to be sealed, longer than any preempt_after", in.TTL, within), nil
}

// enoughTTL leaves a seal a second more than preempt_after.
func enoughTTL(preemptAfter time.Duration) time.Duration {
	least := (preemptAfter + time.Second) * 5 / 4
	if whole := least.Truncate(time.Second); whole < least {
		return whole + time.Second
	}
	return least
}
