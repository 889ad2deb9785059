package doctor

import (
	"fmt"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// judgeTakeovers compares each resource's preempt_after with the time that a grant has to be
// sealed. A seal that is cut short ends no transaction, and the next one waits anew.
func judgeTakeovers(in *Input, all []fence.ResourceStatus) (found []Finding) {
	// The lock client ends a seal with its lease, a fifth of the TTL before the store does
	// (lockclient.Options.Margin).
	within := in.TTL - in.TTL/5
	for _, r := range all {
		// resources.policies reports those that wait much longer. Leases of other lock services
		// have another TTL, or none.
		foreign := r.Advance == fence.AdvanceOnUse && r.Holder == ""
		if r.PreemptAfter == nil || *r.PreemptAfter > longPreempt || *r.PreemptAfter < within || foreign {
			continue
		}
		found = append(found, Finding{Grade: Warning,
			Says:  fmt.Sprintf("%s: preempt_after is %v, and with WIREFENCE_TTL=%v a grant must be sealed within %v", r.Resource, *r.PreemptAfter, in.TTL, within),
			Means: fmt.Sprintf("A takeover behind a stuck transaction fails with \"no answer within %v\" before it may end the transaction, again and again.", within),
			Remedy: []string{
				fmt.Sprintf("WIREFENCE_TTL=%v or longer, for all programs that acquire its lease", enoughTTL(*r.PreemptAfter)),
				fmt.Sprintf("or wirefence resource set %s --preempt-after %v --reason 'takeovers must end before the lease does'", quoted(string(r.Resource)), in.TTL/2),
			}})
	}
	found = firstOf(found, Finding{Says: "the same is true of %d more resources",
		Means: "Their takeovers fail in the same way.", Remedy: []string{"wirefence resource list"}})
	return finding.OrFine(found, "with WIREFENCE_TTL=%v, a grant has %v to be sealed, longer than any preempt_after", in.TTL, within)
}

// enoughTTL returns a TTL that leaves a seal a second more than preempt_after.
func enoughTTL(preemptAfter time.Duration) time.Duration {
	least := (preemptAfter + time.Second) * 5 / 4
	if whole := least.Truncate(time.Second); whole < least {
		return whole + time.Second
	}
	return least
}
