PRAGMA application_id = 1952607858;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE calls (id INTEGER PRIMARY KEY, tool TEXT, started_at REAL, duration_s REAL, outcome TEXT, executed TEXT, caller TEXT, issuer TEXT, principal TEXT, principal_issuer TEXT, call_id TEXT, owner TEXT, digest TEXT, decision TEXT, decided_by TEXT, trace_id TEXT, arguments TEXT);
INSERT INTO "calls" VALUES(1,'files.remove',1.79589655557051396366e+09,1.09236000025703106075e-03,'ok','yes','local','','','','use-1-1','','','allowed','person','','{"path": "a.txt"}');
INSERT INTO "calls" VALUES(2,'files.remove',1.79589655557631802554e+09,6.80008000927045941352e-04,'ok','yes','local','','','','use-1-1','','','allowed','person','','{"path": "a.txt"}');
CREATE INDEX calls_by_time ON calls (started_at);
COMMIT;
