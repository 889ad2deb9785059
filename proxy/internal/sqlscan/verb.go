package sqlscan

// Verb is what a statement begins with. A WITH counts as what it leads to.
type Verb uint8

// The verbs.
const (
	VerbUnknown Verb = iota
	VerbSelect       // also VALUES, TABLE, and a query in parentheses
	VerbInsert
	VerbUpdate
	VerbDelete
	VerbMerge
	VerbTruncate
	VerbCopy
	VerbExplain
	VerbDeclare
	VerbFetch // also MOVE
	VerbClose
	VerbBegin // also START TRANSACTION
	VerbCommit
	VerbRollback
	VerbSavepoint
	VerbRelease
	VerbPrepare // of a statement
	VerbPrepareTransaction
	VerbExecute
	VerbDeallocate
	VerbDiscard
	VerbSet
	VerbReset
	VerbShow
	VerbListen // also UNLISTEN
	VerbNotify
	VerbCall
	VerbDo
	VerbLock
	VerbLoad
	VerbAnalyze
	VerbMaintenance // VACUUM, REINDEX, CLUSTER, CHECKPOINT
	VerbDDL         // CREATE, ALTER, DROP; GRANT and the like are VerbUnknown
)

var verbs = func() (t [256]Verb) {
	for verb, words := range map[Verb][]keyword{
		VerbSelect: {kwSelect, kwValues, kwTable, kwWith},
		VerbInsert: {kwInsert}, VerbUpdate: {kwUpdate}, VerbDelete: {kwDelete}, VerbMerge: {kwMerge},
		VerbTruncate: {kwTruncate}, VerbCopy: {kwCopy}, VerbExplain: {kwExplain},
		VerbDeclare: {kwDeclare}, VerbFetch: {kwFetch, kwMove}, VerbClose: {kwClose},
		VerbBegin: {kwBegin, kwStart}, VerbCommit: {kwCommit, kwEnd}, VerbRollback: {kwRollback, kwAbort},
		VerbSavepoint: {kwSavepoint}, VerbRelease: {kwRelease},
		VerbPrepare: {kwPrepare}, VerbExecute: {kwExecute}, VerbDeallocate: {kwDeallocate},
		VerbDiscard: {kwDiscard}, VerbSet: {kwSet}, VerbReset: {kwReset}, VerbShow: {kwShow},
		VerbListen: {kwListen, kwUnlisten}, VerbNotify: {kwNotify}, VerbCall: {kwCall}, VerbDo: {kwDo},
		VerbLock: {kwLock}, VerbLoad: {kwLoad}, VerbAnalyze: {kwAnalyze, kwAnalyse},
		VerbMaintenance: {kwVacuum, kwReindex, kwCluster, kwCheckpoint},
		VerbDDL:         {kwCreate, kwAlter, kwDrop},
	} {
		for _, w := range words {
			t[w] = verb
		}
	}
	return t
}()

// passes marks the verbs that never need a check themselves.
var passes = [...]bool{
	VerbFetch: true, VerbClose: true, VerbBegin: true, VerbCommit: true, VerbRollback: true,
	VerbSavepoint: true, VerbRelease: true, VerbPrepare: true, VerbDeallocate: true, VerbDiscard: true,
	VerbSet: true, VerbReset: true, VerbShow: true, VerbListen: true, VerbLoad: true,
	VerbAnalyze: true, VerbMaintenance: true, VerbLock: true,
	VerbDDL: false,
}

// conclude fills in what the whole statement says.
func (st *state) conclude() {
	out := &st.out
	out.Verb = st.verb
	out.Write, out.NoCheckBehind = st.writes(), st.noCheckBehind()
	switch st.verb {
	case VerbBegin:
		out.TxBegin = true
	case VerbCommit, VerbRollback:
		st.concludeTx()
	case VerbRelease:
		out.LosesCheck = true
	case VerbPrepare:
		if st.head[1] == kwTransaction && st.third != open && st.head[2] != kwAs {
			out.Verb, out.TxEnd = VerbPrepareTransaction, true
			st.cantFence("PREPARE TRANSACTION")
		}
	case VerbAnalyze, VerbMaintenance:
		out.OwnTx = true
	case VerbDiscard:
		if st.head[1] == kwAll {
			out.OwnTx, out.DropsPrepared, out.Setter, out.SetsLexing = true, true, true, true
		}
	case VerbDeallocate:
		out.DropsPrepared = st.head[1] == kwAll || st.head[1] == kwPrepare && st.head[2] == kwAll
	case VerbReset:
		if st.head[1] == kwAll { // also of what a guard goes by
			out.Setter, out.SetsLexing, out.LosesCheck = true, true, true
		}
	case VerbSet:
		if st.head[1] == kwNames || st.head[2] == kwNames {
			out.SetsLexing = true
		}
	case VerbCall:
		out.Procedural = true
	case VerbDo:
		out.Procedural = true
		st.escapes = st.escapes || st.mentions&mentionsExecute != 0
	case VerbDDL:
		st.concludeDDL()
	}
	if st.setConfig != 0 {
		out.Setter = true // named for another use than a call
	}
	if st.escapes && (st.verb == VerbDo || st.verb == VerbSet || st.verb == VerbReset || st.unicodeCall) {
		out.Setter, out.SetsLexing = true, true
		out.SetterCall = out.SetterCall || st.verb == VerbDo || st.unicodeCall
	}
}

// noCheckBehind decides behind what no check can stand, or none has to.
func (st *state) noCheckBehind() bool {
	if st.unfinished || st.depth > 0 || st.prev.kind == comma || st.prev.kind == cast || st.prev.kind == dot {
		return true
	}
	switch st.verb {
	case VerbDeclare, VerbCall, VerbNotify, VerbListen, VerbLock, VerbLoad:
		return true
	case VerbCopy:
		return st.copy == copyFrom
	case VerbDo:
		return st.mayCommit
	case VerbDDL:
		evaluates := st.head[0] == kwCreate && !st.createsRoutine() || st.head[0] == kwAlter && st.head[1] == kwTable
		return !evaluates
	}
	return false
}

func (st *state) concludeTx() {
	out := &st.out
	switch {
	case st.head[1] == kwPrepared:
		out.OwnTx = true
		if st.verb == VerbCommit {
			st.cantFence("COMMIT PREPARED")
		}
	case st.verb == VerbRollback && (st.head[1] == kwTo || st.head[2] == kwTo):
		out.LosesCheck = true
	default:
		out.TxEnd = true
	}
}

func (st *state) concludeDDL() {
	action, object := st.head[0], st.head[1]
	if action == kwCreate && object == kwUnique {
		object = st.head[2]
	}
	switch object {
	case kwIndex:
		if st.concurrently && action != kwAlter {
			st.cantFence(choose(action, "CREATE INDEX CONCURRENTLY", "", "DROP INDEX CONCURRENTLY"))
		}
	case kwDatabase:
		if action != kwAlter || st.setTablespace {
			st.cantFence(choose(action, "CREATE DATABASE", "ALTER DATABASE SET TABLESPACE", "DROP DATABASE"))
		}
	case kwTablespace:
		if action != kwAlter {
			st.cantFence(choose(action, "CREATE TABLESPACE", "", "DROP TABLESPACE"))
		}
	case kwSubscription:
		st.cantFence(choose(action, "CREATE SUBSCRIPTION", "ALTER SUBSCRIPTION", "DROP SUBSCRIPTION"))
	case kwSystem:
		if action == kwAlter {
			st.cantFence("ALTER SYSTEM")
		}
	case kwTable:
		if action == kwAlter && st.detach && st.concurrently {
			st.cantFence("ALTER TABLE DETACH PARTITION CONCURRENTLY")
		}
	}
}

func choose(action keyword, create, alter, drop string) string {
	switch action {
	case kwCreate:
		return create
	case kwAlter:
		return alter
	}
	return drop
}

func (st *state) cantFence(command string) {
	st.out.Unfenceable, st.out.Write, st.out.OwnTx = command, true, true
}

// writes decides whether the statement must be checked.
func (st *state) writes() bool {
	switch st.verb {
	case VerbSelect, VerbDeclare:
		return st.effect
	case VerbExplain:
		if st.out.Executes { // its arguments are evaluated in any case
			return st.analyzed || st.effect
		}
		return st.analyzed && (st.effect || st.inner != VerbSelect && st.inner != VerbDeclare)
	case VerbSet: // runs the triggers that were deferred
		return st.head[1] == kwConstraints && st.prev.id == kwImmediate
	case VerbCopy:
		return st.effect || st.copy != copyToClient
	}
	return int(st.verb) >= len(passes) || !passes[st.verb]
}
