-- What the schema wirefence has that is not Wirefence's: it belongs to another role than wirefence_owner, and the migrations
-- create nothing of that name. A name counts only beside the table of the version, as in a schema that was restored
-- without owners. $1 has the names of functions with their types, and of tables.
SELECT pg_catalog.pg_describe_object(d.classid, d.objid, 0)
FROM pg_catalog.pg_depend AS d
WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.refobjid = pg_catalog.to_regnamespace('wirefence')
  AND NOT EXISTS ( -- a part of something else
      SELECT FROM pg_catalog.pg_depend AS whole
      WHERE whole.classid = d.classid AND whole.objid = d.objid AND whole.deptype IN ('a', 'i') AND whole.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass)
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_shdepend AS s
      WHERE s.classid = d.classid AND s.objid = d.objid AND s.deptype = 'o' AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass
        AND s.refobjid = (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = 'wirefence_owner')
        AND s.dbid = (SELECT b.oid FROM pg_catalog.pg_database AS b WHERE b.datname = pg_catalog.current_database()))
  AND NOT (pg_catalog.to_regclass('wirefence.applied_version') IS NOT NULL AND EXISTS (
      SELECT FROM pg_catalog.unnest($1::pg_catalog.text[]) AS n(name)
      WHERE CASE WHEN n.name LIKE '%(%' THEN d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = pg_catalog.to_regprocedure(n.name)
            ELSE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = pg_catalog.to_regclass(n.name) END))
ORDER BY 1
