package policy

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// The carriers of the tables.
var (
	variable = Carrier{Variable: true}
	comment  = Carrier{Comment: "orders=34"}
	other    = Carrier{Comment: "orders=33"}
	none     = Carrier{}
)

// situation are facts of a session in enforce mode that is idle, may hold, and whose
// session variable may hold a fence, with changes.
func situation(changes ...func(*Facts)) *Facts {
	f := &Facts{Schema: true, CanHold: true, Variable: true, Quiet: true, Block: NoBlock}
	for _, change := range changes {
		change(f)
	}
	return f
}

func unfenced(f *Facts)     { f.Variable = false }
func required(f *Facts)     { f.Required = true }
func pooled(f *Facts)       { f.Pooled, f.CanHold, f.Variable = true, false, false }
func shadow(f *Facts)       { f.Shadow, f.CanHold = true, false }
func noSchema(f *Facts)     { f.Schema, f.CanHold = false, false }
func neverHolds(f *Facts)   { f.CanHold = false }
func leased(f *Facts)       { f.Variable, f.Stamp, f.Required = false, "lease=1", true }
func busy(f *Facts)         { f.Last = f.Carrier("") }
func inBlock(f *Facts)      { f.Block = InBlock }
func failedBlock(f *Facts)  { f.Block = FailedBlock }
func fenced(f *Facts)       { f.Fenced = true }
func varied(f *Facts)       { f.Varied = true }
func underComment(f *Facts) { f.FencedBy = "orders=34" }
func sparing(f *Facts)      { f.HoldsIfNeeded = true }
func over(f *Facts)         { f.Hold.Over = true }
func calls(f *Facts)        { f.CallsFunctions = true }
func apart(f *Facts)        { f.HoldNeedsExchange = true }

func last(by Carrier) func(*Facts)     { return func(f *Facts) { f.Last = by } }
func told(answer Answer) func(*Facts)  { return func(f *Facts) { f.Answer, f.About = answer, variable } }
func holds(by Carrier) func(*Facts)    { return hold(Held, by) }
func doubtful(by Carrier) func(*Facts) { return hold(Doubtful, by) }
func taking(by Carrier) func(*Facts)   { return hold(Taking, by) }

func checkedBy(by Carrier) func(*Facts) {
	return func(f *Facts) { f.Checked, f.CheckedBy = true, by }
}

func hold(state HoldState, by Carrier) func(*Facts) {
	return func(f *Facts) { f.Hold.State, f.Hold.By = state, by }
}

// pipelined: one answer is outstanding.
func pipelined(f *Facts) { f.Outstanding, f.Quiet = 1, false }

// batched: a batch is open in which nothing has run, and batchRan one in which something has.
func batched(f *Facts)  { f.Batch, f.Quiet = Batch{Open: true, Block: f.Block}, false }
func batchRan(f *Facts) { batched(f); f.Batch.Ran, f.Batch.Block = true, BlockUnknown }

// batchTook: a batch whose first message has asked for the hold.
func batchTook(by Carrier) func(*Facts) {
	return func(f *Facts) {
		batchRan(f)
		f.Batch.TakenHere, f.Batch.Taken, f.Batch.By = true, true, by
		taking(by)(f)
	}
}
func batchChecked(by Carrier) func(*Facts) {
	return func(f *Facts) { batchRan(f); f.Batch.Checked, f.Batch.By = true, by }
}

// saying is a Query of a text, whose comments carry fence.
func saying(sql string) *Message {
	r := new(sqltext.Scanner).Scan([]byte(sql), sqltext.Options{})
	return &Message{Kind: Query, Statements: slices.Clone(r.Statements), Fence: r.Fence, FenceErr: r.FenceErr, BySettings: r.BySettings}
}

// as makes it another kind of message.
func as(kind Kind, sql string) *Message {
	m := saying(sql)
	m.Kind, m.BySettings = kind, false
	return m
}

var functionCall = &Message{Kind: FunctionCall}

const (
	insert = "INSERT INTO t VALUES (1)"
	orders = " /*wirefence.token='orders=34'*/"
	signed = insert + orders
	unlock = "SELECT pg_advisory_unlock_all()"
	set    = "SET wirefence.token = 'orders=34'"
)

// outcome is an action in words.
func outcome(a Action) string {
	text := map[Do]string{Forward: "forward", Wait: "wait", Refuse: "refuse", Take: "take", GiveBack: "give back", Observe: "observe", Ask: "ask"}[a.Do]
	if a.Do == Refuse {
		return fmt.Sprintf("%s %s %d of %d", text, a.Refusal.State, a.Refusal.Reason, a.Refusal.Statement)
	}
	if a.Needed {
		text += ", needed"
	}
	for i, in := range a.Inserts {
		word := " "
		switch {
		case in.Holds:
			word = ", takes "
		case in.By != a.By && i == 0:
			word = ", guard "
		case i == 0 || a.Inserts[i-1].By != in.By:
			word = ", checks "
		}
		text += fmt.Sprint(word, in.Before)
	}
	if a.Covers() && (a.Held || a.Inserts[len(a.Inserts)-1].By == a.By) {
		text += ", covered"
	}
	return text
}

func refused(state fence.SQLState, reason Reason, statement int) string {
	return outcome(refuse(state, reason, statement))
}

type row struct {
	facts   *Facts
	message *Message
	want    string
}

var unread = &Message{Kind: Query, TooLarge: true}

// judge decides each row, which changes nothing.
func judge(t *testing.T, rows map[string]row) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			facts, message := *r.facts, *r.message
			message.Statements = slices.Clone(message.Statements)
			if got := outcome(Decide(r.facts, r.message, nil)); got != r.want {
				t.Errorf("%s\n%+v:\n%s, want %s", name, *r.facts, got, r.want)
			}
			if !reflect.DeepEqual(*r.facts, facts) || !reflect.DeepEqual(*r.message, message) {
				t.Error("it changes what it judges by")
			}
		})
	}
}

// A session that carries nothing is forwarded as it is.
func TestUnfencedSessions(t *testing.T) {
	judge(t, map[string]row{
		"a statement":                {situation(unfenced), saying(insert), "forward"},
		"in a block":                 {situation(unfenced, inBlock), saying(insert), "forward"},
		"pipelined":                  {situation(unfenced, pipelined), saying(insert), "forward"},
		"what a check can't cover":   {situation(unfenced), saying("VACUUM"), "forward"},
		"a function call":            {situation(unfenced), functionCall, "forward"},
		"PREPARE TRANSACTION":        {situation(unfenced, inBlock), saying("PREPARE TRANSACTION 'x'"), "forward"},
		"COMMIT PREPARED":            {situation(unfenced), saying("COMMIT PREPARED 'x'"), "forward"},
		"a fence that can't be read": {situation(unfenced), saying(insert + " /*wirefence.token='orders='*/"), refused(fence.MalformedToken, Plain, 0)},
		"a text that sets one":       {situation(unfenced), saying(set), "forward"},
		"a text that isn't read":     {situation(unfenced), unread, "forward"},
		"behind that in the text":    {situation(unfenced), saying(insert + ";" + set + ";" + insert + ";" + insert), "forward, checks 2, covered"},
		"an unlock, nothing held":    {situation(unfenced), saying(unlock), "forward"},
	})
}

// Checks stand ahead of the first statement that isn't transaction control, and again
// behind each that is.
func TestPlacesOfChecks(t *testing.T) {
	fencedBy := func(changes ...func(*Facts)) *Facts { return situation(append(changes, neverHolds)...) }
	rows := map[string]row{}
	for sql, checks := range map[string]string{
		"SELECT 1":                "0",
		"SELECT 1; SELECT 2":      "0",
		"BEGIN; SELECT 1; COMMIT": "1",
		"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1":                          "1",
		"BEGIN; SET TRANSACTION READ ONLY; SELECT 1":                            "2",
		"BEGIN; SET LOCAL TRANSACTION READ ONLY; TABLE a":                       "2",
		"BEGIN; LOCK TABLE t; SELECT 1":                                         "2",
		"BEGIN; LOCK TABLE t; LOCK TABLE u":                                     "3",
		"BEGIN; LOCK TABLE t; SET TRANSACTION READ ONLY; SHOW x":                "4",
		"BEGIN; LOCK TABLE t; SAVEPOINT s; LOCK TABLE u; ROLLBACK TO s":         "2",
		"BEGIN; SAVEPOINT s; ROLLBACK TO s; LOCK TABLE u; RELEASE s":            "1 4",
		"SELECT 1; LOCK TABLE t; SELECT 1":                                      "0",
		"LOCK TABLE t; SELECT 1":                                                "1",
		"BEGIN; LOCK TABLE t; COMMIT":                                           "2",
		"LOCK TABLE t; " + set + "; COMMIT":                                     "1 2",
		"SELECT 1; COMMIT; SELECT 1":                                            "0 2",
		"SELECT 1; " + set + "; COMMIT":                                         "0 2",
		"SELECT 1; ROLLBACK TO s; COMMIT":                                       "0",
		"SELECT 1; " + set + "; SELECT 1; ROLLBACK TO s; COMMIT":                "0 2 4",
		"SELECT 1; ROLLBACK; SELECT 1":                                          "0 2",
		"SELECT 1; COMMIT AND CHAIN; SELECT 1":                                  "0 2",
		"BEGIN; SAVEPOINT s; SELECT 1":                                          "1",
		"BEGIN; SELECT 1; SAVEPOINT s; SELECT 1":                                "1",
		"BEGIN; SELECT 1; ROLLBACK TO s; SELECT 1":                              "1 3",
		"BEGIN; SELECT 1; RELEASE s; SELECT 1":                                  "1 3",
		"SET x = 1; SELECT 1":                                                   "1",
		"SHOW x; RESET x; DEALLOCATE p; SELECT 1":                               "3",
		"SET CONSTRAINTS ALL IMMEDIATE":                                         "0",
		"PREPARE p AS SELECT 1; EXECUTE p":                                      "0",
		"SELECT 1; " + set + "; SELECT 1":                                       "0 2",
		"SELECT 1; RESET ALL; SELECT 1":                                         "0 2",
		"SELECT 1; SET TRANSACTION SNAPSHOT 'x'; TABLE a":                       "0 2",
		"SELECT 1; SELECT set_config('wirefence.token', 'a=1', true); SELECT 1": "0 2",
		"CALL p(); SELECT 1":                                                    "0",
		"SELECT 1; VACUUM":                                                      "0",
		"SELECT 1; " + unlock:                                                   "0",
		"(SELECT 1)":                                                            "0",
		"SELECT 1; DISCARD ALL":                                                 "0",
	} {
		rows[sql] = row{fencedBy(), saying(sql), "forward, checks " + checks + ", covered"}
	}
	for _, sql := range []string{"BEGIN", "COMMIT", "ROLLBACK", "ROLLBACK TO s", "RELEASE s", "SET x = 1", "SHOW x", "RESET ALL", "DEALLOCATE ALL", "LOCK TABLE t", "SET TRANSACTION READ ONLY", "DISCARD ALL", "DISCARD TEMP", "SAVEPOINT s",
		unlock, unlock + "; CLOSE ALL; UNLISTEN *; RESET ALL", "CLOSE ALL; UNLISTEN *", "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; " + unlock, "", ";"} {
		rows["none: "+sql] = row{fencedBy(), saying(sql), "forward"}
	}
	judge(t, rows)
	judge(t, map[string]row{
		"SAVEPOINT in a block":              {fencedBy(inBlock), saying("SAVEPOINT s"), "forward, checks 0, covered"},
		"LOCK in a block":                   {fencedBy(inBlock), saying("LOCK TABLE t"), "forward, checks 1, covered"},
		"an unlock in a block":              {fencedBy(inBlock), saying(unlock), "forward, checks 0, covered"},
		"nothing runs in a failed block":    {fencedBy(failedBlock), saying("SELECT 1; SELECT 2"), "forward"},
		"but behind its end":                {fencedBy(failedBlock), saying("SELECT 1; ROLLBACK; SELECT 2"), "forward, checks 2, covered"},
		"and behind ROLLBACK TO":            {fencedBy(failedBlock), saying("ROLLBACK TO s; SELECT 2"), "forward, checks 1, covered"},
		"COMMIT under the fence of a check": {fencedBy(inBlock, fenced), saying("COMMIT"), "forward"},
		"COMMIT behind ROLLBACK TO":         {fencedBy(inBlock, fenced), saying("ROLLBACK TO s; COMMIT"), "forward"},
		"which brings a value back":         {fencedBy(inBlock, fenced, varied), saying("ROLLBACK TO s; COMMIT"), "forward, checks 1, covered"},
		"and takes a comment's check back":  {fencedBy(inBlock, fenced, underComment), saying("ROLLBACK TO s; COMMIT" + orders), "forward, checks 1, covered"},
		"COMMIT under a comment's fence":    {fencedBy(inBlock, fenced, underComment), saying("COMMIT" + orders), "forward"},
		"LOCK and COMMIT behind another's":  {fencedBy(inBlock, fenced), saying("LOCK TABLE t; COMMIT"), "forward, checks 1, covered"},
		"COMMIT under another fence":        {fencedBy(inBlock, fenced), saying("COMMIT" + orders), "forward, checks 0, covered"},
		"a comment":                         {fencedBy(unfenced), saying(signed), "forward, checks 0, covered"},
		"a comment, and SET":                {fencedBy(), saying(set + ";" + signed + ";" + set + "; SELECT 1"), "forward, checks 1, covered"},
		"a stamp":                           {fencedBy(leased), saying(insert), "forward, checks 0, covered"},
		"a required fence":                  {fencedBy(unfenced, required), saying("SELECT 1"), "forward, checks 0, covered"},
		"pipelined":                         {fencedBy(pipelined), saying(insert), "forward, checks 0, covered"},
	})
}

// In a batch each Execute is judged, and one check covers a transaction in it.
func TestBatches(t *testing.T) {
	f := func(changes ...func(*Facts)) *Facts { return situation(append(changes, neverHolds)...) }
	judge(t, map[string]row{
		"a Parse":                             {f(), as(Parse, insert), "forward, checks 0, covered"},
		"a Bind":                              {f(), as(Bind, insert), "forward, checks 0, covered"},
		"a Describe":                          {f(), as(Describe, insert), "forward, checks 0, covered"},
		"a Describe in a failed block":        {f(failedBlock), as(Describe, insert), "forward"},
		"a Describe, pipelined":               {f(pipelined), as(Describe, insert), "wait"},
		"a Close":                             {f(), &Message{Kind: OtherFirst}, "forward"},
		"an Execute":                          {f(batched), as(Execute, insert), "forward, checks 0, covered"},
		"an Execute behind a check":           {f(batchChecked(variable)), as(Execute, insert), "forward"},
		"behind the check of another fence":   {f(batchChecked(comment)), as(Execute, insert), "forward, checks 0, covered"},
		"SAVEPOINT behind a check":            {f(batchChecked(variable)), as(Execute, "SAVEPOINT s"), "forward"},
		"a check in another batch":            {f(func(f *Facts) { f.Batch = Batch{Checked: true, By: variable} }), as(Execute, insert), "forward, checks 0, covered"},
		"a batch behind a failed block":       {f(failedBlock, batched), as(Execute, insert), "forward"},
		"COMMIT there":                        {f(failedBlock, batched), as(Execute, "COMMIT"), "forward"},
		"a Query in it, read by settings":     {f(batchRan), saying(`SELECT '\'`), refused(fence.CannotBeFenced, UnknownSettings, 0)},
		"nothing has changed them":            {f(batched), saying(`SELECT '\'`), "forward, checks 0, covered"},
		"LOCK in it":                          {f(inBlock, batched), as(Execute, "LOCK TABLE t"), "forward, checks 1, covered"},
		"parsed":                              {f(inBlock, batched), as(Parse, "LOCK TABLE t"), "forward"},
		"SAVEPOINT, parsed":                   {f(inBlock, batched), as(Parse, "SAVEPOINT s"), "forward"},
		"a Query read by settings, pipelined": {f(pipelined), saying(`SELECT '\'`), "wait"},
		"alone, at the beginning of it":       {situation(), as(Parse, "CALL p()"), "take, needed"},
		"alone, with no hold to have":         {f(told(Unheld)), as(Parse, "CALL p()"), refused(fence.CannotBeFenced, NotShared, 0)},
		"alone, behind other messages":        {situation(batchRan), as(Execute, "CALL p()"), refused(fence.CannotBeFenced, NotFirst, 0)},
		"alone, parsed behind other messages": {situation(batched), as(Parse, "CALL p()"), "forward, checks 0, covered"},
		"alone, bound behind a check":         {situation(batchChecked(variable)), as(Bind, "CALL p()"), "forward"},
		"alone, described under a hold":       {situation(holds(variable), batched), as(Describe, "CALL p()"), "forward, covered"},
		"alone, parsed in shadow mode":        {situation(shadow, unfenced, required, batched), as(Parse, "CALL p()"), "forward"},
		"alone, parsed where it may run":      {situation(func(f *Facts) { batched(f); f.Answer, f.About = Empty, variable }), as(Parse, "CALL p()"), "forward"},
		"alone, in a block of the batch":      {f(func(f *Facts) { batched(f); f.Batch.Ran, f.Batch.Block = true, InBlock }), as(Execute, "CALL p()"), "forward, checks 0, covered"},
		"a function call in it":               {situation(batchRan), functionCall, refused(fence.CannotBeFenced, NotFirst, 0)},
		"alone, told ahead of the batch":      {situation(func(f *Facts) { batched(f); f.Answer, f.About = Empty, variable }), as(Execute, "CALL p()"), "forward"},
		"alone, told so of another's fence":   {situation(func(f *Facts) { batched(f); f.Answer, f.About = Empty, variable }), as(Execute, "CALL p() /*wirefence.token='orders=34'*/"), refused(fence.CannotBeFenced, NotFirst, 0)},
	})
}

// A hold is taken, taken anew and given back only with nothing outstanding and no
// transaction open.
func TestHolds(t *testing.T) {
	judge(t, map[string]row{
		"an isolated statement is checked":         {situation(), saying(insert), "forward, checks 0, covered"},
		"a busy session takes":                     {situation(busy), saying(insert), "forward, takes 0, covered"},
		"with a comment":                           {situation(last(comment)), saying(signed), "forward, takes 0, covered"},
		"with a stamp":                             {situation(leased, busy), saying(insert), "forward, takes 0, covered"},
		"it counts in a chain":                     {situation(holds(variable), inBlock), saying("COMMIT AND CHAIN; SELECT 1; SELECT 2"), "forward, covered"},
		"and begins anew":                          {situation(holds(variable), inBlock), saying("COMMIT; BEGIN; SELECT 1"), "forward, covered"},
		"nor behind a statement":                   {situation(doubtful(variable), inBlock), saying("SELECT 1"), "forward, checks 0, covered"},
		"not in a session that holds for need":     {situation(busy, sparing), saying(insert), "forward, checks 0, covered"},
		"not another's":                            {situation(last(other)), saying(signed), "forward, checks 0, covered"},
		"not in a block":                           {situation(busy, inBlock), saying(insert), "forward, checks 0, covered"},
		"not while something is outstanding":       {situation(busy, pipelined), saying(insert), "forward, checks 0, covered"},
		"not in a batch":                           {situation(busy, batched), as(Execute, insert), "forward, checks 0, covered"},
		"ahead of a batch":                         {situation(busy), as(Bind, insert), "forward, takes 0, covered"},
		"ahead of a Close":                         {situation(busy), &Message{Kind: OtherFirst}, "take"},
		"apart, where the isolation level asks it": {situation(busy, apart), saying(insert), "take"},
		"apart ahead of what it can't share":       {situation(busy), saying("SELECT 1; SAVEPOINT s"), "take"},
		"or of what may end it":                    {situation(busy), saying("SELECT 1; " + unlock), "take"},
		"later in that batch":                      {situation(busy, batchTook(variable)), as(Execute, insert), "forward, covered"},
		"a SAVEPOINT there":                        {situation(busy, batchTook(variable)), as(Execute, "SAVEPOINT s"), "forward, checks 0, covered"},
		"an unlock there":                          {situation(busy, batchTook(variable)), as(Execute, unlock), "forward, checks 0, covered"},
		"another fence there":                      {situation(busy, batchTook(variable)), as(Parse, signed), "forward, checks 0, covered"},
		"an unlock of another's there":             {situation(unfenced, batchTook(comment), fenced), as(Execute, unlock), "forward, guard 0"},
		"what stands alone there":                  {situation(busy, batchTook(variable)), as(Execute, "VACUUM"), refused(fence.CannotBeFenced, NotFirst, 0)},
		"where it may not":                         {situation(busy, neverHolds), saying(insert), "forward, checks 0, covered"},
		"it can't be held":                         {situation(busy, told(Unheld)), saying(insert), "forward, checks 0, covered"},
		"ahead of BEGIN for what comes next":       {situation(unfenced, last(comment)), saying("BEGIN"), "take"},
		"it counts":                                {situation(busy, holds(variable)), saying(insert), "forward, covered"},
		"in a block":                               {situation(busy, holds(variable), inBlock), saying(insert), "forward, covered"},
		"pipelined, counts":                        {situation(busy, holds(variable), pipelined), saying(insert), "forward, covered"},
		"in a batch, counts":                       {situation(busy, holds(variable), batched), as(Execute, insert), "forward, covered"},
		"for one fence only":                       {situation(busy, holds(variable), inBlock), saying(signed), "forward, checks 0, covered"},
		"not before the answer":                    {situation(busy, taking(variable), pipelined), saying(insert), "forward, checks 0, covered"},
		"over: anew":                               {situation(busy, holds(variable), over), saying(insert), "forward, takes 0, covered"},
		"over, in a block: counts":                 {situation(busy, holds(variable), over, inBlock), saying(insert), "forward, covered"},
		"over, outstanding: the client waits":      {situation(busy, holds(variable), over, pipelined), saying(insert), "wait"},
		"over, after a pause: given back":          {situation(holds(variable), over), saying(insert), "give back"},
		"over, and the next carries nothing":       {situation(unfenced, holds(comment), over), saying(insert), "give back"},
		"doubtful: anew":                           {situation(busy, doubtful(variable)), saying(insert), "forward, takes 0, covered"},
		"doubtful, in a block: checked":            {situation(doubtful(variable), inBlock), saying(insert), "forward, checks 0, covered"},
		"doubtful: given back":                     {situation(doubtful(variable)), saying(insert), "give back"},
		"doubtful, outstanding: the client waits":  {situation(busy, doubtful(variable), pipelined), saying(insert), "wait"},
		"doubtful, and the next carries nothing":   {situation(unfenced, doubtful(comment)), saying(insert), "give back"},
		"held for another, which comes no more":    {situation(holds(comment)), saying(insert), "give back"},
		"held, and the next carries nothing":       {situation(unfenced, holds(comment)), saying(insert), "forward"},
		"held, none comes, one is required":        {situation(unfenced, required, holds(comment)), saying(insert), "give back"},
		"SAVEPOINT is checked all the same":        {situation(holds(variable), inBlock), saying("SAVEPOINT s"), "forward, checks 0, covered"},
		"so is what may release it":                {situation(holds(variable), inBlock), saying(unlock), "forward, checks 0, covered"},
		"behind which it doesn't count":            {situation(holds(variable), inBlock), saying(unlock + "; COMMIT; SELECT 1"), "forward, checks 0 2, covered"},
		"nor behind SET":                           {situation(holds(variable), inBlock), saying(set + "; SELECT 1"), "forward, checks 0 1, covered"},
		"nor behind RESET ALL":                     {situation(holds(variable), inBlock), saying("RESET ALL; SELECT 1"), "forward, checks 0 1, covered"},
		"but a comment's":                          {situation(holds(comment), inBlock), saying(set + ";" + signed), "forward, covered"},
		"nor behind a snapshot of another's":       {situation(holds(variable), inBlock), saying("SET TRANSACTION SNAPSHOT 'x'; SELECT 1"), "forward, checks 1, covered"},
		"DISCARD ALL alone":                        {situation(holds(variable)), saying("DISCARD ALL"), "forward"},
		"what a pool sends between two users":      {situation(holds(variable)), saying(unlock + "; CLOSE ALL; UNLISTEN *; RESET ALL"), "forward"},
		"not behind another statement":             {situation(holds(variable)), saying("SELECT 1; " + unlock), "forward, checks 1, covered"},
		"DISCARD ALL behind what it would release": {situation(holds(variable)), saying("SELECT 1; DISCARD ALL"), "forward, checks 1, covered"},
		"DISCARD ALL in a block":                   {situation(holds(variable), inBlock), saying("DISCARD ALL"), "forward, checks 0, covered"},
		"DO that sets the fence, perhaps so":       {situation(holds(variable), pipelined), saying("DO 'perform set_config(''wirefence.token'', ''b=1'', false)'"), "wait"},
		"DISCARD ALL, perhaps in a block":          {situation(holds(variable), pipelined), saying("DISCARD ALL"), "wait"},
		"an unlock under another's hold":           {situation(unfenced, holds(comment), fenced, inBlock), saying(unlock), "forward, guard 0"},
		"which carries one itself":                 {situation(holds(comment), fenced, inBlock), saying("SHOW x; " + unlock), "forward, guard 1, checks 1, covered"},
		"nothing ran under that hold":              {situation(unfenced, holds(comment), inBlock), saying(unlock), "forward"},
		"perhaps it did":                           {situation(unfenced, holds(comment), fenced, pipelined), saying(unlock), "wait"},
	})
}

// What can't share a transaction with a check waits for a hold.
func TestWhatStandsAlone(t *testing.T) {
	rows := map[string]row{}
	for name, m := range map[string]*Message{
		"CALL": saying("CALL p()"), "VACUUM": saying("VACUUM"), "DO": saying("DO ''"), "an unknown word": saying("FROBNICATE"),
		"CIC": saying("CREATE INDEX CONCURRENTLY i ON t (a)"), "a function call": functionCall, "a batch's": as(Parse, "CALL p()"),
	} {
		for about, r := range map[string]row{
			"takes":                           {situation(), m, "take, needed"},
			"also where nothing else holds":   {situation(sparing), m, "take, needed"},
			"counts":                          {situation(holds(variable)), m, "forward, covered"},
			"a stale one is told":             {situation(told(Fails)), m, refused(fence.CannotBeFenced, ByExchange, 0)},
			"the variable is empty":           {situation(told(Empty)), m, "forward"},
			"and one is required":             {situation(told(Empty), required), m, refused(fence.TokenRequired, Plain, 0)},
			"none came where one is required": {situation(unfenced, required), m, refused(fence.TokenRequired, Plain, 0)},
			"it can't be held":                {situation(told(Unheld)), m, refused(fence.CannotBeFenced, NotShared, 0)},
			"it is shadowed":                  {situation(told(Observed)), m, "forward"},
			"no hold here: what would it get": {situation(neverHolds), m, "observe"},
			"it is good, and no hold here":    {situation(neverHolds, told(Unheld)), m, refused(fence.CannotBeFenced, NotShared, 0)},
			"there is one, and no schema":     {situation(noSchema, told(Unheld)), m, refused(fence.CannotBeFenced, NotShared, 0)},
			"while another is held":           {situation(neverHolds, holds(comment)), m, "give back"},
			"something is outstanding":        {situation(pipelined), m, "wait"},
			"in shadow mode":                  {situation(shadow), m, "observe"},
			"told in shadow mode":             {situation(shadow, told(Observed)), m, "forward"},
		} {
			rows[name+": "+about] = r
		}
	}
	judge(t, rows)
	judge(t, map[string]row{
		"CALL in a block":                   {situation(inBlock), saying("CALL p()"), "forward, checks 0, covered"},
		"CALL in a failed block":            {situation(failedBlock), saying("CALL p()"), "forward"},
		"CALL behind others of its text":    {situation(), saying("SELECT 1; CALL p()"), "forward, checks 0, covered"},
		"a function call in a block":        {situation(inBlock), functionCall, refused(fence.CannotBeFenced, CallUncovered, 0)},
		"behind a check":                    {situation(inBlock, checkedBy(variable)), functionCall, "forward"},
		"of another fence":                  {situation(inBlock, checkedBy(comment)), functionCall, refused(fence.CannotBeFenced, CallUncovered, 0)},
		"under a hold":                      {situation(inBlock, holds(variable)), functionCall, "forward, covered"},
		"with nothing carried":              {situation(unfenced, inBlock, fenced, holds(comment)), functionCall, "forward"},
		"BEGIN of a client that sends them": {situation(calls), saying("BEGIN"), "forward, checks 1, covered"},
		"executed":                          {situation(calls, batched), as(Execute, "BEGIN"), "forward, checks 1, covered"},
		"and not parsed":                    {situation(calls), as(Parse, "BEGIN"), "forward"},
		"BEGIN and SET TRANSACTION":         {situation(calls), saying("BEGIN; SET TRANSACTION READ ONLY"), "forward, checks 2, covered"},
		"a transaction in one text":         {situation(calls), saying("BEGIN; SELECT 1"), "forward, checks 1, covered"},
		"that has ended":                    {situation(calls), saying("BEGIN; ROLLBACK"), "forward"},
		"under a hold already":              {situation(calls, holds(variable)), saying("BEGIN"), "forward, covered"},
		"DO releases what would cover it":   {situation(holds(variable)), saying("DO 'perform pg_advisory_unlock_all()'"), refused(fence.CannotBeFenced, NotShared, 0)},
		"in a block it is checked":          {situation(holds(variable), inBlock), saying("DO 'perform pg_advisory_unlock_all()'"), "forward, checks 0, covered"},
	})
}

// What no check and no hold could make right is refused.
func TestWhatIsRefused(t *testing.T) {
	const kept, ends = "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'"
	not := func(reason Reason) string { return refused(fence.CannotBeFenced, reason, 0) }
	judge(t, map[string]row{
		"a fence where nothing can check it":     {situation(noSchema), saying(signed), not(NoSchema)},
		"the variable may be empty there":        {situation(noSchema), saying(insert), "forward, checks 0, covered"},
		"a text that isn't read":                 {situation(), unread, "ask"},
		"behind others":                          {situation(pipelined), unread, "wait"},
		"of a session with a fence":              {situation(told(Unheld)), unread, not(TooLarge)},
		"of one without":                         {situation(told(Empty)), unread, "forward"},
		"where one is required":                  {situation(unfenced, required), unread, not(TooLarge)},
		"under a hold, not read":                 {situation(holds(variable)), unread, not(TooLarge)},
		"in a transaction under a fence":         {situation(unfenced, inBlock, fenced), unread, not(TooLarge)},
		"PREPARE with a fence":                   {situation(), saying("PREPARE p AS " + signed), not(StoredFence)},
		"DECLARE with a fence":                   {situation(inBlock), saying("DECLARE c CURSOR FOR SELECT 1 /*wirefence.token='orders=34'*/"), not(StoredFence)},
		"the second of a text":                   {situation(), saying("SELECT 1; PREPARE p AS " + signed), refused(fence.CannotBeFenced, StoredFence, 1)},
		"PREPARE TRANSACTION, perhaps fenced":    {situation(inBlock), saying(kept), "ask"},
		"it is":                                  {situation(inBlock, told(Unheld)), saying(kept), not(TransactionKept)},
		"it can't be asked":                      {situation(inBlock, told(Fails)), saying(kept), not(TransactionKept)},
		"it isn't":                               {situation(inBlock, told(Empty)), saying(kept), "forward"},
		"not yet":                                {situation(inBlock, pipelined), saying(kept), "wait"},
		"too late to ask":                        {situation(inBlock, batchRan), as(Execute, kept), not(TransactionKept)},
		"asked ahead of the batch":               {situation(inBlock, func(f *Facts) { batched(f); f.Answer, f.About = Empty, variable }), as(Bind, kept), "forward"},
		"in a failed block":                      {situation(failedBlock), saying(kept), "forward"},
		"behind its ROLLBACK TO":                 {situation(unfenced, failedBlock, fenced, underComment), saying("ROLLBACK TO s; " + kept), refused(fence.CannotBeFenced, TransactionKept, 1)},
		"of a transaction that was fenced":       {situation(unfenced, inBlock, fenced), saying(kept), "ask"},
		"by a comment":                           {situation(unfenced, inBlock, fenced, underComment), saying(kept), not(TransactionKept)},
		"under a hold":                           {situation(unfenced, inBlock, fenced, func(f *Facts) { f.Judged = true }), saying(kept), not(TransactionKept)},
		"where nothing ran under it":             {situation(unfenced, inBlock, holds(comment)), saying(kept), "forward"},
		"where a fence is required":              {situation(unfenced, inBlock, required), saying(kept), not(TransactionKept)},
		"behind a SET in its text":               {situation(unfenced, inBlock), saying(set + ";" + kept), refused(fence.CannotBeFenced, TransactionKept, 1)},
		"COMMIT PREPARED, perhaps fenced":        {situation(), saying(ends), "ask"},
		"ROLLBACK PREPARED, too":                 {situation(), saying("ROLLBACK PREPARED 'x'"), "ask"},
		"which it is":                            {situation(told(Unheld)), saying("ROLLBACK PREPARED 'x'"), not(EndsUnseen)},
		"and which it isn't":                     {situation(told(Empty)), saying(ends), "forward"},
		"COMMIT PREPARED, fenced":                {situation(), saying(ends + orders), not(EndsUnseen)},
		"COMMIT PREPARED, a fence is required":   {situation(unfenced, required), saying(ends), not(EndsUnseen)},
		"behind a pooler, SET":                   {situation(pooled), saying(set), not(PooledVariable)},
		"behind a pooler, set_config":            {situation(pooled), saying("SELECT set_config('wirefence.token', 'a=1', false)"), not(PooledVariable)},
		"behind a pooler, others' settings":      {situation(pooled), saying("SELECT set_config(lower('App.x'), '1', false)"), "forward"},
		"behind a pooler, a word":                {situation(pooled), saying("SELECT 'see wirefence'"), "forward"},
		"behind a pooler, SET LOCAL":             {situation(pooled, inBlock), saying("SET LOCAL wirefence.token = 'a=1'"), "forward"},
		"behind a pooler, set_config(..., true)": {situation(pooled, inBlock), saying("SELECT set_config('wirefence.token', 'a=1', true)"), "forward"},
		"behind a pooler, a comment":             {situation(pooled), saying(signed), "forward, checks 0, covered"},
		"behind a pooler, CALL":                  {situation(pooled, func(f *Facts) { f.Answer, f.About = Unheld, Carrier{Comment: "a=1"} }), saying("CALL p() /*wirefence.token='a=1'*/"), not(NotShared)},
	})
}

// Shadow mode refuses nothing where it need not judge, and what it refuses the
// session lets pass.
func TestShadow(t *testing.T) {
	judge(t, map[string]row{
		"a check that tells":            {situation(shadow), saying(insert), "forward, checks 0, covered"},
		"no schema: nothing is changed": {situation(shadow, noSchema, required), saying(insert), "forward"},
		"CALL with nothing carried":     {situation(shadow, unfenced), saying("CALL p()"), "forward"},
		"a batch's CALL":                {situation(shadow, batchRan), as(Execute, "CALL p()"), "forward"},
	})
}

// Behind a pooler the variable carries a fence from SET LOCAL on, to the end of its
// transaction: otherwise it is another client's.
func TestTheVariableBehindAPooler(t *testing.T) {
	const local = "SET LOCAL wirefence.token = 'orders=34'"
	m := saying(insert + "; BEGIN; " + local + "; " + insert + "; COMMIT; " + insert)
	var carriers []Carrier
	for _, in := range Decide(situation(pooled, required), m, nil).Inserts {
		carriers = append(carriers, in.By)
	}
	if want := []Carrier{none, variable, none}; !slices.Equal(carriers, want) {
		t.Errorf("checks by %+v, want %+v", carriers, want)
	}
}

// What a hold becomes, from each state by each event.
func TestStatesOfAHold(t *testing.T) {
	events := []HoldEvent{Asks, Grants, Declines, AskFails, Doubts, GivesBack, GiveBackFails}
	for state, want := range map[HoldState][]HoldState{
		NoHold:   {Taking, NoHold, NoHold, NoHold, NoHold, NoHold, Doubtful},
		Taking:   {Taking, Held, NoHold, Doubtful, Doubted, NoHold, Taking},
		Doubted:  {Taking, Doubtful, NoHold, Doubtful, Doubted, NoHold, Doubted},
		Held:     {Taking, Held, Held, Held, Doubtful, NoHold, Held},
		Doubtful: {Taking, Doubtful, Doubtful, Doubtful, Doubtful, NoHold, Doubtful},
	} {
		for i, event := range events {
			if got := state.Next(event); got != want[i] {
				t.Errorf("%d behind event %d: %d, want %d", state, event, got, want[i])
			}
		}
	}
}
