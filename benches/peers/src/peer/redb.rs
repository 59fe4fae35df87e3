//! redb: a B-tree in one file, with a page cache of its own. It has no call for many keys.

use redb::TableDefinition;
use redb::{Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable};

use super::{Open, Peer, See, SeeEntry, in_batches};
use crate::data::{Data, Key};
use crate::failure::Result;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("default");

pub struct Redb {
    // Dropped before the database it reads: a transaction that is open holds pages.
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
    db: Database,
}

impl Redb {
    pub fn open(how: Open<'_>) -> Result<Self> {
        let db = Builder::new().set_cache_size(how.cache).create(how.dir.join("data.redb"))?;
        let transaction = db.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        // One transaction for all look-ups, as its readers are advised to have.
        let table = db.begin_read()?.open_table(TABLE)?;
        Ok(Self { table, db })
    }
}

impl Peer for Redb {
    fn load(&self, data: &Data, order: &[u32]) -> Result<()> {
        in_batches(data, order, |entries| {
            let mut transaction = self.db.begin_write()?;
            transaction.set_durability(Durability::None)?;
            {
                let mut table = transaction.open_table(TABLE)?;
                for (key, value) in entries {
                    table.insert(key.as_slice(), value.as_slice())?;
                }
            }
            Ok(transaction.commit()?)
        })?;
        // Makes all of the above durable.
        Ok(self.db.begin_write()?.commit()?)
    }

    fn get(&self, key: &Key, see: See<'_>) -> Result<()> {
        let value = self.table.get(key.as_slice())?;
        see(0, value.as_ref().map(redb::AccessGuard::value));
        Ok(())
    }

    fn scan(&self, see: SeeEntry<'_>) -> Result<()> {
        for entry in self.table.iter()? {
            let (key, value) = entry?;
            if !see(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }
}
