package sqlscan

import "strings"

// keyword is a keyword that the classifier asks for, notKeyword for a name, or
// someKeyword.
type keyword uint8

const (
	notKeyword keyword = iota
	someKeyword
	kwAbort
	kwAll
	kwAlter
	kwAnalyse
	kwAnalyze
	kwAs
	kwAtomic
	kwBegin
	kwBy
	kwCall
	kwCheckpoint
	kwClose
	kwCluster
	kwComment
	kwCommit
	kwConcurrently
	kwConstraints
	kwCopy
	kwCreate
	kwDatabase
	kwDeallocate
	kwDeclare
	kwDelete
	kwDetach
	kwDiscard
	kwDistinct
	kwDo
	kwDrop
	kwEnd
	kwExcept
	kwExecute
	kwExplain
	kwFetch
	kwFor
	kwFrom
	kwFunction
	kwImmediate
	kwIndex
	kwInsert
	kwIntersect
	kwInto
	kwKey
	kwLimit
	kwListen
	kwLoad
	kwLocal
	kwLock
	kwMerge
	kwMove
	kwNames
	kwNo
	kwNotify
	kwOffset
	kwOn
	kwOperator
	kwOr
	kwOrder
	kwPrepare
	kwPrepared
	kwProcedure
	kwRecursive
	kwReindex
	kwRelease
	kwReplace
	kwReset
	kwReturning
	kwRollback
	kwSavepoint
	kwSelect
	kwSession
	kwSet
	kwShare
	kwShow
	kwStart
	kwStdin
	kwStdout
	kwSubscription
	kwSystem
	kwTable
	kwTablespace
	kwTo
	kwTransaction
	kwTreat
	kwTruncate
	kwUnion
	kwUnique
	kwUnlisten
	kwUpdate
	kwUsing
	kwVacuum
	kwValues
	kwVerbose
	kwWith
	kwWork
)

var keywordNames = [...]string{
	kwAbort:        "abort",
	kwAll:          "all",
	kwAlter:        "alter",
	kwAnalyse:      "analyse",
	kwAnalyze:      "analyze",
	kwAs:           "as",
	kwAtomic:       "atomic",
	kwBegin:        "begin",
	kwBy:           "by",
	kwCall:         "call",
	kwCheckpoint:   "checkpoint",
	kwClose:        "close",
	kwCluster:      "cluster",
	kwComment:      "comment",
	kwCommit:       "commit",
	kwConcurrently: "concurrently",
	kwConstraints:  "constraints",
	kwCopy:         "copy",
	kwCreate:       "create",
	kwDatabase:     "database",
	kwDeallocate:   "deallocate",
	kwDeclare:      "declare",
	kwDelete:       "delete",
	kwDetach:       "detach",
	kwDiscard:      "discard",
	kwDistinct:     "distinct",
	kwDo:           "do",
	kwDrop:         "drop",
	kwEnd:          "end",
	kwExcept:       "except",
	kwExecute:      "execute",
	kwExplain:      "explain",
	kwFetch:        "fetch",
	kwFor:          "for",
	kwFrom:         "from",
	kwFunction:     "function",
	kwImmediate:    "immediate",
	kwIndex:        "index",
	kwInsert:       "insert",
	kwIntersect:    "intersect",
	kwInto:         "into",
	kwKey:          "key",
	kwLimit:        "limit",
	kwListen:       "listen",
	kwLoad:         "load",
	kwLocal:        "local",
	kwLock:         "lock",
	kwMerge:        "merge",
	kwMove:         "move",
	kwNames:        "names",
	kwNo:           "no",
	kwNotify:       "notify",
	kwOffset:       "offset",
	kwOn:           "on",
	kwOperator:     "operator",
	kwOr:           "or",
	kwOrder:        "order",
	kwPrepare:      "prepare",
	kwPrepared:     "prepared",
	kwProcedure:    "procedure",
	kwRecursive:    "recursive",
	kwReindex:      "reindex",
	kwRelease:      "release",
	kwReplace:      "replace",
	kwReset:        "reset",
	kwReturning:    "returning",
	kwRollback:     "rollback",
	kwSavepoint:    "savepoint",
	kwSelect:       "select",
	kwSession:      "session",
	kwSet:          "set",
	kwShare:        "share",
	kwShow:         "show",
	kwStart:        "start",
	kwStdin:        "stdin",
	kwStdout:       "stdout",
	kwSubscription: "subscription",
	kwSystem:       "system",
	kwTable:        "table",
	kwTablespace:   "tablespace",
	kwTo:           "to",
	kwTransaction:  "transaction",
	kwTreat:        "treat",
	kwTruncate:     "truncate",
	kwUnion:        "union",
	kwUnique:       "unique",
	kwUnlisten:     "unlisten",
	kwUpdate:       "update",
	kwUsing:        "using",
	kwVacuum:       "vacuum",
	kwValues:       "values",
	kwVerbose:      "verbose",
	kwWith:         "with",
	kwWork:         "work",
}

// category is PostgreSQL's category of a keyword.
type category uint8

const (
	unreserved category = iota + 1
	columnName          // can't name a function
	typeOrFunction
	reserved
)

// The keywords of PostgreSQL 18, by pg_get_keywords().
const (
	unreservedWords = `
abort absent absolute access action add admin after aggregate also alter always asensitive assertion
assignment at atomic attach attribute backward before begin breadth by cache call called cascade
cascaded catalog chain characteristics checkpoint class close cluster columns comment comments
commit committed compression conditional configuration conflict connection constraints content
continue conversion copy cost csv cube current cursor cycle data database day deallocate declare
defaults deferred definer delete delimiter delimiters depends depth detach dictionary disable
discard document domain double drop each empty enable encoding encrypted enforced enum error escape
event exclude excluding exclusive execute explain expression extension external family filter
finalize first following force format forward function functions generated global granted groups
handler header hold hour identity if immediate immutable implicit import include including increment
indent index indexes inherit inherits inline input insensitive insert instead invoker isolation keep
key keys label language large last leakproof level listen load local location lock locked logged
mapping match matched materialized maxvalue merge method minute minvalue mode month move name names
nested new next nfc nfd nfkc nfkd no normalized nothing notify nowait nulls object objects of off
oids old omit operator option options ordinality others over overriding owned owner parallel
parameter parser partial partition passing password path period plan plans policy preceding prepare
prepared preserve prior privileges procedural procedure procedures program publication quote quotes
range read reassign recursive ref referencing refresh reindex relative release rename repeatable
replace replica reset restart restrict return returns revoke role rollback rollup routine routines
rows rule savepoint scalar schema schemas scroll search second security sequence sequences
serializable server session set sets share show simple skip snapshot source sql stable standalone
start statement statistics stdin stdout storage stored strict string strip subscription support
sysid system tables tablespace target temp template temporary text ties transaction transform
trigger truncate trusted type types uescape unbounded uncommitted unconditional unencrypted unknown
unlisten unlogged until update vacuum valid validate validator value varying version view views
virtual volatile whitespace within without work wrapper write xml year yes zone`
	columnNameWords = `
between bigint bit boolean char character coalesce dec decimal exists extract float greatest
grouping inout int integer interval json json_array json_arrayagg json_exists json_object
json_objectagg json_query json_scalar json_serialize json_table json_value least merge_action
national nchar none normalize nullif numeric out overlay position precision real row setof smallint
substring time timestamp treat trim values varchar xmlattributes xmlconcat xmlelement xmlexists
xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable`
	typeOrFunctionWords = `
authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull
join left like natural notnull outer overlaps right similar tablesample verbose`
	reservedWords = `
all analyse analyze and any array as asc asymmetric both case cast check collate column constraint
create current_catalog current_date current_role current_time current_timestamp current_user default
deferrable desc distinct do else end except false fetch for foreign from grant group having in
initially intersect into lateral leading limit localtime localtimestamp not null offset on only or
order placing primary references returning select session_user some symmetric system_user table then
to trailing true union unique user using variadic when where window with`
)

// softWords are unreserved keywords that stand before a parenthesis in the syntax
// of a query, and those whose category changed after PostgreSQL 14.
const softWords = `by columns content cube document escape exclude filter first groups json
json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize
json_table json_value key materialized merge_action nested next normalize of over partition passing
operator path range repeatable rollup rows second sets value within zone`

// keywordInfo is what is known of a keyword.
type keywordInfo struct {
	name     string
	id       keyword
	category category
	soft     bool // may stand before a parenthesis without calling anything
}

const keywordSlots = 2048

var keywords = func() (t [keywordSlots]keywordInfo) {
	ids := map[string]keyword{}
	for id, name := range keywordNames {
		ids[name] = keyword(id)
	}
	soft := map[string]bool{}
	for _, name := range strings.Fields(softWords) {
		soft[name] = true
	}
	for i, words := range []string{unreservedWords, columnNameWords, typeOrFunctionWords, reservedWords} {
		for _, name := range strings.Fields(words) {
			at := slot([]byte(name))
			for t[at].name != "" {
				at = (at + 1) % keywordSlots
			}
			c := category(i + 1)
			id := ids[name]
			t[at] = keywordInfo{name, max(id, someKeyword), c, soft[name] || c == typeOrFunction}
		}
	}
	return t
}()

// longestKeyword is the length of current_timestamp.
const longestKeyword = 17

// findKeyword returns what is known of a folded word, or nil for a mere name.
func findKeyword(folded []byte) *keywordInfo {
	if len(folded) > longestKeyword || len(folded) < 2 {
		return nil
	}
	for at := slot(folded); ; at = (at + 1) % keywordSlots {
		switch k := &keywords[at]; {
		case k.name == "":
			return nil
		case k.name == string(folded):
			return k
		}
	}
}

func slot(folded []byte) uint {
	n := len(folded)
	h := uint(folded[0])*31 + uint(folded[1])
	h = h*31 + uint(folded[n/2])
	h = h*31 + uint(folded[n-1])
	return (h*37 + uint(n)) % keywordSlots
}
